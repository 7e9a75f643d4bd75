// Package policyfile reads the operator's policies from files: which commands may run, and what
// commands may reach over the network.
//
// [RuleFlags] name a folder of rules about commands (Starlark). ReadPolicy reads them for a serving
// agent, ReadHere for a command of this program. [RuleCheck] is agent execpolicy check.
//
// [ReadNetwork] reads the policy for the network, the limit of what any client can allow. It is a
// TOML file, read strictly:
//
//	allow = ["packages.example.net", "*.example.org:443"]
//	deny  = ["internal.example.org"]
//	ask   = ["github.com"]      # the client has to be asked, and may refuse
//	ports = [443, 80]           # no others; without it, every port
//	local = false               # true: local and private addresses, too
//	tcp_upstream = "HOST:PORT"  # the only way out for SOCKS5 and transparent connections; or none
//	upstream = "environment"    # the proxies of the agent's environment; or "none", or "http://HOST:PORT"
//
//	[masking.forge]             # a credential that commands may use and not see
//	env = ["FORGE_TOKEN"]
//	patterns = ["fg_[a-z0-9]{40}"]
//	url_prefixes = ["https://forge.example.org/api"]
//
// [FollowRules] and [FollowNetwork] read a policy again at each signal.
package policyfile
