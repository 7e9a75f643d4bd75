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

// confineFlags say what a command may do: the flags that agent sandbox and agent exec share. A flag about files
// or variables belongs to package policy.
type confineFlags struct {
	policy.Flags
	Network       []string `sep:"none" env:"AGENT_SANDBOX_NETWORK" placeholder:"on|off|allow=HOST,..." help:"on or off: whether the command can use this host's network. Or the hosts that it can reach: allow=HOST,... deny=HOST,... ask=HOST,... With METHOD HOST/PATH in place of HOST, the requests that it can send. You are asked at the terminal about all other hosts; without a terminal they are refused. ask alone asks about every host. local lets names lead to local and private addresses. Can be repeated. Default: off."`
	NoTransparent bool     `env:"AGENT_SANDBOX_NO_TRANSPARENT" help:"With --network allow=HOST and the like: connect only through the proxy that the variables of the command name. Without this flag every program reaches allowed hosts as if there were no proxy."`
	NoRefusals    bool     `env:"AGENT_SANDBOX_NO_REFUSALS" help:"Do not say at the end what the sandbox has refused to the command, or, if the command has failed and that is not known, what the sandbox allows."`

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

// planOn returns what the flags let a command do on a host.
func (f *confineFlags) planOn(h policy.Host) (*policy.Plan, error) {
	plan, err := f.Plan(h)
	if err == nil && f.network.On {
		plan.Profile.Network = sandbox.NetworkEnabled
	}
	return plan, err
}

// tellHidden prints which secrets are hidden from the command.
func tellHidden(sys program.System, plan *policy.Plan, variables []string) {
	for _, line := range []string{policy.HiddenFiles(plan.Hidden), policy.HiddenVariables(variables)} {
		if line != "" {
			program.Complain(sys.Stderr, "sandbox: "+line)
		}
	}
}

// explain prints what the command could do. hidden are the variables that are hidden, and given those that -e
// sets.
func (f *confineFlags) explain(w io.Writer, plan *policy.Plan, hidden []string, given map[string]string) error {
	var lines []policy.Line
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
		lines = append(lines, policy.Line{Verb: hosts[host], What: host, Origin: origin})
	}
	switch {
	case f.network.Managed:
		lines = append(lines, policy.Line{Verb: "ask", What: "all others", Origin: "default: refused if there is no terminal"})
	case f.network.On:
		lines = append(lines, policy.Line{Verb: "allow", What: "everything", Origin: said})
	default:
		lines = append(lines, policy.Line{Verb: "refuse", What: "everything", Origin: said})
	}
	return errors.Join(plan.Explain(w), policy.Print(w, "network", lines), f.ExplainEnviron(w, hidden, given))
}

// confine puts the sandbox and the variables that the flags name into the request of agent exec. Without a flag
// about files or the network the command is not confined.
func (e *execution) confine(ctx context.Context, p *protocol.StartParams) error {
	f, here := &e.flags.confineFlags, !e.flags.Elsewhere()
	confined := f.FileFlag() != "" || len(f.Network) > 0
	environ, hidden := e.sys.Environ, []string(nil)
	if here && (confined || f.CleanEnv) {
		shown := f.Flags
		shown.ShowSecrets = shown.ShowSecrets || !confined
		environ, hidden = shown.Environ(environ, e.variables)
		p.EnvPolicy = policy.EnvPolicyHere(e.sys.Environ, environ)
	} else if !here {
		p.EnvPolicy = f.EnvPolicyThere()
	}
	if !confined {
		return nil
	}
	host, err := policy.Here(e.sys.Lookup, environ), error(nil)
	if !here {
		host, err = policy.There(ctx, e.client, e.info)
	}
	if err != nil {
		return err
	}
	if host.Cwd, err = p.Cwd.Native(); err != nil {
		return err
	}
	plan, err := f.planOn(host)
	if err != nil {
		return err
	}
	tellHidden(e.sys, plan, hidden)
	if p.Sandbox, err = plan.At(ctx, e.client, e.info); err != nil {
		return err
	}
	if f.network.Managed {
		p.EnforceManagedNetwork = true
		p.NetworkProxy = f.network.Proxy(e.console.CanAsk() && !e.flags.Detach)
		p.NetworkProxy.Proxy.TransparentTCP = !f.NoTransparent && e.info.Capabilities.NetworkProxyTransparentTCP
		if !f.NoTransparent && !p.NetworkProxy.Proxy.TransparentTCP {
			program.Complain(e.sys.Stderr, "programs have to use the proxy that their variables name, because this agent cannot make connections transparent")
		}
	}
	return nil
}

// answersHosts returns an option of the client for a limited network: the user answers questions about hosts at
// the terminal, and e.summary notes all decisions. With it the agent also says what was refused.
func (e *execution) answersHosts() func(*client.Config) {
	return func(cfg *client.Config) {
		cfg.Refusals = !e.flags.NoRefusals
		if !e.flags.network.Managed {
			return
		}
		cfg.Network.Decided = e.summary.Decided
		if e.console.CanAsk() {
			cfg.Network.Decide = local.AnswerHosts(e.console.Ask)
		}
	}
}
