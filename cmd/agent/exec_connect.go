package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/agent/internal/policyfile"
	"github.com/execagent/execagent/cmd/agent/internal/target"
	"github.com/execagent/execagent/cmd/internal/program"
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
	embedded, err := embed(e.sys, &e.flags.execRuleFlags, &e.flags.limitFlags, e.flags.Logger(e.sys))
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

// embed starts an agent for commands, which has the rules of --exec-policy. The caller calls dial or serve, and then
// close.
func embed(sys program.System, rules *execRuleFlags, limits *limitFlags, log *slog.Logger) (*embedded, error) {
	var read *agent.ExecPolicy
	if rules.ExecPolicy != "" {
		_, err := rules.files()
		if err == nil {
			read, err = (*policyfile.RuleFlags)(rules).ReadPolicy(log)
		}
		if err != nil {
			return nil, err
		}
	}
	m := &embedded{ended: make(chan struct{})}
	if limits.Memory > 0 || limits.CPUs > 0 || limits.PIDs > 0 {
		var err error
		m.groups, err = procs.NewCgroups(procs.CgroupLimits{})
		if err != nil && !errors.Is(err, procs.ErrNotDelegated) {
			return nil, fmt.Errorf("control groups: %w", err)
		}
	}
	m.guard, m.reaper = newGuard()
	m.agent = agent.New(agent.Config{
		Confines: true,
		Version:  build.ExecutorVersion(),
		Environ:  sys.Environ,
		Logger:   log,
		Reaper:   m.reaper,
		Guard:    m.guard,

		ExecPolicy: read,
		Cgroups:    m.groups,
	})
	return m, nil
}

// dial connects to the agent. It may be called once.
func (m *embedded) dial(context.Context) (rpc.Conn, error) {
	ours, theirs := rpc.Pipe()
	go func() {
		// The error needs no report, because the client sees the connection end and reports that.
		_ = m.serve(context.Background(), theirs)
	}()
	return ours, nil
}

// serve serves the one client of the agent.
func (m *embedded) serve(ctx context.Context, conn rpc.Conn) error {
	defer close(m.ended)
	return m.agent.ServeConn(ctx, conn)
}

// close waits until the client has closed the connection, and then kills the processes that the
// command has left. Without an earlier dial or serve it would wait for ever.
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
