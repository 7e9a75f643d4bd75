// Package netpolicy reads the operator's policy for the network of commands: the ceiling of
// what any client can give them. It is a TOML file, read strictly.
//
//	allow = ["packages.example.net", "*.example.org:443"]
//	deny  = ["internal.example.org"]
//	ask   = ["github.com"]      # the client has to be asked, and may refuse
//	ports = [443, 80]           # no others; without it, every port
//	local = false               # true: local and private addresses, too
//	upstream = "environment"    # the proxies of the agent's environment; or "none", or "http://HOST:PORT"
//
//	[masking.forge]             # a credential that commands may use and not see
//	env = ["FORGE_TOKEN"]
//	patterns = ["fg_[a-z0-9]{40}"]
//	url_prefixes = ["https://forge.example.org/api"]
package policyfile
