package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/cmd/agent/netpolicy"
)

// networkFlags say what the network of commands may be, whatever clients ask for.
type networkFlags struct {
	NetworkPolicy             string `env:"AGENT_NETWORK_POLICY" group:"sandbox" type:"path" placeholder:"FILE" help:"Policy (TOML) for the proxies of commands, which no client can loosen: allow, deny, ask, ports, local, upstream, masking. SIGHUP has it read again."`
	RequireNetworkEnforcement bool   `env:"AGENT_REQUIRE_NETWORK_ENFORCEMENT" group:"sandbox" help:"Refuse commands that could reach the network in another way than through a proxy with a policy: those without a sandbox, too."`
}

// read reads the policy; nil where there is none.
func (f *networkFlags) read() (*netpolicy.Policy, error) {
	if f.NetworkPolicy == "" {
		return nil, nil
	}
	return netpolicy.Read(f.NetworkPolicy)
}

// hangups has SIGHUP reload the policies for the network and for commands, if there is one, instead
// of ending the program.
func (f *serverFlags) hangups() (network, commands chan os.Signal) {
	network, commands = make(chan os.Signal, 1), make(chan os.Signal, 1)
	if f.NetworkPolicy != "" || f.ExecPolicy != "" {
		signal.Reset(syscall.SIGHUP) // nobody else is to act on it
		signal.Notify(network, syscall.SIGHUP)
		signal.Notify(commands, syscall.SIGHUP)
	}
	return network, commands
}

// follow has the agent follow the policy. The function that it returns ends that, and waits.
func (s *server) follow(policy *netpolicy.Policy, hangups <-chan os.Signal, a *agent.Agent) (stop func()) {
	if policy == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var following sync.WaitGroup
	following.Go(func() {
		set := func(p *netpolicy.Policy) { a.SetNetwork(p.Operator(s.sys.Environ)) }
		policy.Follow(ctx, s.flags.NetworkPolicy, hangups, set, s.logger)
	})
	return func() {
		cancel()
		following.Wait()
	}
}
