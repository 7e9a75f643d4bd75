package main

import (
	"context"
	"fmt"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/agent/internal/sessions"
	"github.com/execagent/execagent/cmd/internal/program"
)

// endFlags say which sessions end.
type endFlags struct {
	agentFlags
	Force bool     `short:"f" help:"Also end sessions in which processes run or to which a client is attached. The processes are killed."`
	Names []string `arg:"" name:"name" complete:"sessions" help:"Names of sessions."`
}

func (*endFlags) Help() string {
	return `Ends sessions, as docker rm removes containers, and prints their names. The agent discards their exit codes and output. You can then use the names again.

Examples:

    agent end --url 127.0.0.1:7000 nightly
    agent ps --url 127.0.0.1:7000 -q | xargs agent end --url 127.0.0.1:7000 --force

Exit codes: 0, 1 when a session could not be ended, 2 for a wrong command line.`
}

func (f *endFlags) Check() error { return f.validNames(f.Names...) }

func (f *endFlags) run(sys program.System) int {
	return f.on(sys, program.ExitFailure, func(ctx context.Context, c *client.Client) (int, error) {
		return eachNamed(ctx, sys, c, f.Names, func(s *sessions.Found) error {
			switch {
			case f.Force:
			case s.ListedSession.Running > 0:
				return fmt.Errorf("something runs in session %s: --force kills it", s.Name)
			case s.Attached:
				return fmt.Errorf("session %s is in use by the client %q: --force ends the session anyway", s.Name, s.ClientName)
			}
			return c.EndSession(ctx, s.SessionID)
		})
	})
}
