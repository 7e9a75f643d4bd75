package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/agent/internal/policyfile"
	"github.com/execagent/execagent/cmd/agent/internal/target"
	"github.com/execagent/execagent/internal/build"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/rpc"
)

// connect returns a client of the agent at --url or behind --registry, or else of an agent that it
// starts in this process. The caller calls disconnect, which also ends an agent in this process.
func (e *execution) connect(ctx context.Context) (c *client.Client, disconnect func(), err error) {
	if e.flags.Elsewhere() {
		if e.flags.named() {
			c, err = e.connectNamed(ctx)
		} else {
			c, err = e.flags.Connect(ctx, e.sys, e.flags.onDisconnect, answers(e.console), e.answersHosts())
		}
		if err != nil {
			return nil, nil, err
		}
		return c, func() { _ = c.Close() }, nil // the exit code is that of the command
	}
	e.flags.Logger(e.sys).Debug("no agent is named, so one is embedded in this process")
	embedded, err := e.embed()
	if err != nil {
		return nil, nil, err
	}
	cfg := client.Config{Dial: embedded.dial, Single: true, ClientName: target.ClientName}
	e.answersHosts()(&cfg)
	answers(e.console)(&cfg)
	c, err = client.Connect(ctx, cfg)
	if err != nil {
		embedded.close()
		return nil, nil, err
	}
	return c, func() {
		_ = c.Close()
		embedded.close()
	}, nil
}

// embedded is an agent in this process. Its one client reaches it by rpc.Pipe.
type embedded struct {
	agent  *agent.Agent
	guard  *procs.Guard
	reaper *procs.Reaper
	groups *procs.Cgroups // nil: limits need none, or this host delegates none
	ended  chan struct{}  // closed when the connection has ended
}

// embed starts an agent, which has the rules of --exec-policy. The caller calls dial, and then close.
func (e *execution) embed() (*embedded, error) {
	var rules *agent.ExecPolicy
	if e.flags.ExecPolicy != "" {
		_, err := e.flags.execRuleFlags.files()
		if err == nil {
			rules, err = (*policyfile.RuleFlags)(&e.flags.execRuleFlags).ReadPolicy(e.flags.Logger(e.sys))
		}
		if err != nil {
			return nil, err
		}
	}
	m := &embedded{ended: make(chan struct{})}
	if e.flags.Memory > 0 || e.flags.CPUs > 0 || e.flags.PIDs > 0 {
		var err error
		m.groups, err = procs.NewCgroups(procs.CgroupLimits{})
		if err != nil && !errors.Is(err, procs.ErrNotDelegated) {
			return nil, fmt.Errorf("control groups: %w", err)
		}
	}
	m.guard, m.reaper = newGuard()
	m.agent = agent.New(agent.Config{
		Confines: true,
		Version:  build.ExecutorVersion,
		Environ:  e.sys.Environ,
		Logger:   e.flags.Logger(e.sys),
		Reaper:   m.reaper,
		Guard:    m.guard,

		ExecPolicy: rules,
		Cgroups:    m.groups,
	})
	return m, nil
}

// dial connects to the agent. It may be called once.
func (m *embedded) dial(context.Context) (rpc.Conn, error) {
	ours, theirs := rpc.Pipe()
	go func() {
		defer close(m.ended)
		// The error needs no report, because the client sees the connection end and reports that.
		_ = m.agent.ServeConn(context.Background(), theirs)
	}()
	return ours, nil
}

// close waits until the client has closed the connection, and then kills the processes that the
// command has left. Without an earlier dial it would wait for ever.
func (m *embedded) close() {
	<-m.ended
	// An error cannot be handled any more, and the exit code is that of the command.
	_ = m.agent.Close()
	if m.guard != nil { // it starts processes
		_ = m.guard.Close()
		m.reaper.Close()
	}
	if m.groups != nil {
		_ = m.groups.Close() // the next agent removes what is left
	}
}
