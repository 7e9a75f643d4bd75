package main

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/agent/internal/local"
	"github.com/execagent/execagent/cmd/agent/internal/policy"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/sandbox"
)

// confineFlags say what a command may do, here or at an agent.
type confineFlags struct {
	policy.Flags
	Network       []string `sep:"none" env:"AGENT_SANDBOX_NETWORK" placeholder:"on|off|allow=HOST,..." help:"on or off: whether the command can use this host's network. Or, which hosts it can reach: allow=HOST,... deny=HOST,... ask=HOST,..., and which requests it can send, where METHOD HOST/PATH stands for HOST; about all other hosts it asks at the terminal, if there is one. ask alone asks about every host. local lets names lead to local and private addresses. Can be repeated. Default: off."`
	NoTransparent bool     `env:"AGENT_SANDBOX_NO_TRANSPARENT" help:"With --network allow=HOST and the like: connect only through the proxy that the variables of the command name. Without this flag every program reaches allowed hosts as if there were no proxy."`

	network local.NetworkWords // the parsed form of Network; Check sets it
}

// Check finds flags that contradict each other, and parses the flag for the network.
func (f *confineFlags) Check() (err error) {
	if err := f.Flags.Check(); err != nil {
		return err
	}
	if f.network, err = local.ParseNetwork(f.Network); err != nil {
		return err
	}
	if len(f.Network) == 0 || f.network.Managed {
		if err := f.network.AllowToo(slices.Sorted(maps.Keys(f.Hosts()))); err != nil {
			return err
		}
	}
	if f.NoTransparent && !f.network.Managed {
		return errors.New("--no-transparent needs --network with hosts, or ask")
	}
	f.network.Plain = f.NoTransparent
	return nil
}

// tellHidden says which secrets the command does not get.
func tellHidden(sys program.System, plan *policy.Plan, variables []string) {
	for _, line := range []string{policy.HiddenFiles(plan.Hidden), policy.HiddenVariables(variables)} {
		if line != "" {
			program.Complain(sys.Stderr, "sandbox: "+line)
		}
	}
}

// explain prints the effective policy.
func (f *confineFlags) explain(w io.Writer, plan *policy.Plan, hidden []string, given map[string]string) error {
	var rows []policy.Row
	said, profiles := "default", f.Hosts()
	if len(f.Network) > 0 {
		said = "--network"
	}
	asked, err := local.ParseNetwork(f.Network)
	if err != nil {
		return err
	}
	hosts, own := f.network.Hosts(), asked.Hosts()
	for _, host := range slices.Sorted(maps.Keys(hosts)) {
		origin := "--network"
		if own[host] == "" {
			origin = profiles[host]
		}
		rows = append(rows, policy.Row{Verb: hosts[host], What: host, Origin: origin})
	}
	switch {
	case f.network.Managed:
		rows = append(rows, policy.Row{Verb: "ask", What: "all others", Origin: "default: refused if there is no terminal"})
	case f.network.On:
		rows = append(rows, policy.Row{Verb: "allow", What: "everything", Origin: said})
	default:
		rows = append(rows, policy.Row{Verb: "refuse", What: "everything", Origin: said})
	}
	return errors.Join(plan.Explain(w), policy.Print(w, "network", rows), f.ExplainEnviron(w, hidden, given))
}

// confine gives a command of agent exec the sandbox and the variables that the flags say. Without such
// flags the command is not confined.
func (e *execution) confine(ctx context.Context, p *protocol.StartParams) error {
	f, here := &e.flags.confineFlags, !e.flags.Elsewhere()
	confined := f.Files() != "" || len(f.Network) > 0
	environ, hidden := e.sys.Environ, []string(nil)
	if here && (confined || f.CleanEnv) {
		shown := f.Flags
		shown.ShowSecrets = shown.ShowSecrets || !confined
		environ, hidden = shown.Environ(environ, e.variables)
		p.EnvPolicy = f.EnvPolicy(e.sys.Environ, environ)
	} else if !here {
		p.EnvPolicy = f.EnvPolicyThere()
	}
	if !confined {
		return nil
	}
	host, err := e.host(ctx, environ)
	if err != nil {
		return err
	}
	if host.Cwd, err = p.Cwd.Native(); err != nil {
		return err
	}
	plan, err := f.Plan(host)
	if err != nil {
		return err
	}
	if f.network.On {
		plan.Profile.Network = sandbox.NetworkEnabled
	}
	tellHidden(e.sys, plan, hidden)
	for _, dir := range plan.Make {
		if err := e.client.FS(nil).Mkdir(ctx, dir, true); err != nil {
			return err
		}
	}
	p.Sandbox = plan.Wire()
	if f.network.Managed {
		p.EnforceManagedNetwork = true
		p.NetworkProxy = f.network.Proxy(e.console.CanAsk() && !e.flags.Detach)
		p.NetworkProxy.Proxy.TransparentTCP = !f.NoTransparent && e.info.Capabilities.NetworkProxyTransparentTCP
		if !f.NoTransparent && !p.NetworkProxy.Proxy.TransparentTCP {
			program.Complain(e.sys.Stderr, "programs have to use the proxy that their variables name, because connections cannot be transparent at this agent")
		}
	}
	return nil
}

// host returns what the plan depends on: this machine, or the agent's.
func (e *execution) host(ctx context.Context, environ []string) (policy.Host, error) {
	if !e.flags.Elsewhere() {
		return policy.Host{Home: policy.HomeOf(e.sys.Lookup), TmpDir: sandbox.TmpDir(environ), Lookup: e.sys.Lookup}, nil
	}
	home, err := "", error(nil)
	if !e.info.UserHomeDir.IsZero() {
		home, err = e.info.UserHomeDir.Native()
	}
	files := e.client.FS(nil)
	return policy.Host{
		Home:   home,
		Lookup: func(string) (string, bool) { return "", false },
		Abs:    func(word string) (string, error) { return below(e.info, word) },
		Real:   func(name string) (string, error) { return files.Canonicalize(ctx, name) },
	}, err
}

// hosts returns an option with which the user answers questions about hosts at a terminal, and with which
// summary notes all decisions.
func (e *execution) hosts() func(*client.Config) {
	return func(cfg *client.Config) {
		if !e.flags.network.Managed {
			return
		}
		cfg.Network.Decided = e.summary.Decided
		if e.console.CanAsk() {
			cfg.Network.Decide = local.AnswerHosts(e.console.Ask)
		}
	}
}
