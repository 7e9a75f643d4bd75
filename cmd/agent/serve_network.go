package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/cmd/agent/internal/policyfile"
)

// networkFlags say what the network of commands may be, whatever clients ask for.
type networkFlags struct {
	NetworkPolicy             string `env:"AGENT_NETWORK_POLICY" group:"sandbox" type:"path" placeholder:"FILE" help:"Policy (TOML) for the proxies of commands, which no client can loosen: allow, deny, ask, ports, local, upstream, masking. SIGHUP has it read again."`
	RequireNetworkEnforcement bool   `env:"AGENT_REQUIRE_NETWORK_ENFORCEMENT" group:"sandbox" help:"Refuse commands that could reach the network in another way than through a proxy with a policy: those without a sandbox, too."`
}

// read reads the policy, nil where there is none, and makes of it what holds for an agent with an
// environment.
func (f *networkFlags) read(environ []string) (policy *agent.NetworkPolicy, network *agent.Network, err error) {
	if f.NetworkPolicy != "" {
		policy, err = policyfile.ReadNetwork(f.NetworkPolicy)
	}
	if err == nil {
		network, err = agent.NewNetwork(policy, environ)
	}
	return policy, network, err
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
func (s *server) follow(policy *agent.NetworkPolicy, hangups <-chan os.Signal, a *agent.Agent) (stop func()) {
	if policy == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var following sync.WaitGroup
	following.Go(func() {
		set := func(p *agent.NetworkPolicy) error {
			network, err := agent.NewNetwork(p, s.sys.Environ)
			if err == nil {
				a.SetNetwork(network)
			}
			return err
		}
		policyfile.FollowNetwork(ctx, policy, s.flags.NetworkPolicy, hangups, set, s.logger)
	})
	return func() {
		cancel()
		following.Wait()
	}
}
