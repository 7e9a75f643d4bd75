package main

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/cmd/agent/internal/policyfile"
	"github.com/execagent/execagent/internal/egress"
	"github.com/execagent/execagent/internal/netproxy"
)

// networkFlags limit the network of commands, whatever clients request.
type networkFlags struct {
	NetworkPolicy             string `env:"AGENT_NETWORK_POLICY" group:"sandbox" type:"path" placeholder:"FILE" help:"Policy (TOML) for the network proxies of commands: allow, deny, ask, ports, local, upstream, tcp_upstream, masking. No client can loosen it. SIGHUP reads it again."`
	PrivateUpstream           bool   `name:"proxy-private-ips-via-upstream" env:"AGENT_PROXY_PRIVATE_IPS_VIA_UPSTREAM,CODEX_EXEC_SERVER_PROXY_PRIVATE_IPS_VIA_UPSTREAM" group:"sandbox" help:"Let the network proxies of commands reach allowed private addresses through the upstream proxy, if one leads out and the client allows it. Without this flag they connect to such addresses directly. Addresses of this host are never behind an upstream proxy."`
	TransparentTCP            bool   `name:"linux-sandbox-transparent-tcp" env:"AGENT_LINUX_SANDBOX_TRANSPARENT_TCP" group:"sandbox" help:"Let each command with an enforced network and a proxy of the agent connect without knowing the proxy, even if its client does not ask for that. Programs then resolve every name, and the proxy judges each connection."`
	UnixSockets               bool   `name:"linux-sandbox-unix-sockets" env:"AGENT_LINUX_SANDBOX_UNIX_SOCKETS" group:"sandbox" help:"Let each command with an enforced network connect to the UNIX sockets that its client allows by unixSockets and allowUnixSockets. Without this flag these members have no effect."`
	TCPUpstreamProxy          string `name:"tcp-upstream-proxy" env:"AGENT_TCP_UPSTREAM_PROXY" group:"sandbox" placeholder:"HOST:PORT" help:"HTTP proxy (CONNECT) that is the only way out for SOCKS5 and for transparent connections of commands. If a client does not allow upstream proxies, these connections fail. Private addresses are reached only with --proxy-private-ips-via-upstream."`
	RequireNetworkEnforcement bool   `env:"AGENT_REQUIRE_NETWORK_ENFORCEMENT" group:"sandbox" help:"Refuse commands that could reach the network without a proxy that has a policy. This includes all commands without a sandbox. Clients' own requests and sockets reach only what --network-policy allows."`
}

// read reads the policy, and makes the network of an agent with this environment. policy is nil if
// the flags name no policy.
func (f *networkFlags) read(environ []string) (policy *agent.NetworkPolicy, network *agent.Network, err error) {
	if f.NetworkPolicy != "" {
		policy, err = policyfile.ReadNetwork(f.NetworkPolicy)
	}
	if err == nil {
		network, err = agent.NewNetwork(policy, f.upstreams(environ))
	}
	return policy, network, err
}

// upstreams returns the environment that names the upstream proxies, with the word of the flag.
func (f *networkFlags) upstreams(environ []string) []string {
	return slices.Concat([]string{
		netproxy.PrivateVariable + "=" + strconv.FormatBool(f.PrivateUpstream), egress.TCPVariable + "=" + f.TCPUpstreamProxy,
	}, environ)
}

// checkUpstream refuses a proxy for TCP that is not HOST:PORT.
func (f *networkFlags) checkUpstream() error {
	if _, err := egress.TCPUpstream(f.TCPUpstreamProxy, nil); err != nil {
		return fmt.Errorf("--tcp-upstream-proxy %q is not HOST:PORT", f.TCPUpstreamProxy)
	}
	return nil
}

// hangups returns channels that get SIGHUP, if there is a policy for the network or for commands to
// read again. Without a policy, SIGHUP ends the program.
func (f *serverFlags) hangups() (network, commands chan os.Signal) {
	network, commands = make(chan os.Signal, 1), make(chan os.Signal, 1)
	if f.NetworkPolicy != "" || f.ExecPolicy != "" {
		signal.Reset(syscall.SIGHUP) // no other handler may act on it
		signal.Notify(network, syscall.SIGHUP)
		signal.Notify(commands, syscall.SIGHUP)
	}
	return network, commands
}

// follow reads the policy for the network again at each signal. stop ends this, and waits until it
// has ended.
func (s *server) follow(policy *agent.NetworkPolicy, hangups <-chan os.Signal, a *agent.Agent) (stop func()) {
	set := func(p *agent.NetworkPolicy) error {
		network, err := agent.NewNetwork(p, s.flags.upstreams(s.sys.Environ))
		if err == nil {
			a.SetNetwork(network)
		}
		return err
	}
	return policyfile.FollowNetwork(policy, s.flags.NetworkPolicy, hangups, set, s.logger)
}
