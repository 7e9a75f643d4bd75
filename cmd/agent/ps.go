package main

import (
	"context"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/agent/internal/sessions"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/protocol"
)

// psFlags say how the sessions of an agent are listed.
type psFlags struct {
	agentFlags
	listFlags
	All bool `short:"a" help:"Accepted, but not needed: ended sessions are always listed too."`
}

func (*psFlags) Help() string {
	return `Lists your named sessions, oldest first. agent exec gives a session its name, with --name or -d. Your sessions are those of the same user or token; if the agent cannot tell its clients apart, they are the sessions of all clients. After "exited" comes the exit code. agent logs prints the output.

Examples:

    agent ps --url 127.0.0.1:7000
    agent ps --url 127.0.0.1:7000 -o json | jq '.[] | select(.attached | not) | .name'

Exit codes: 0, 1 when agent itself failed, 2 for a wrong command line.`
}

func (f *psFlags) run(sys program.System) int {
	return f.on(sys, program.ExitFailure, func(ctx context.Context, c *client.Client) (int, error) {
		if f.Quiet && f.Output == "table" {
			listed, err := c.Sessions(ctx)
			if err != nil {
				return 0, err
			}
			return program.ExitOK, printList(sys.Stdout, f.listFlags, listed, func(s protocol.ListedSession) string { return s.Name }, "", nil)
		}
		all, err := sessions.All(ctx, c)
		if err != nil {
			return 0, err
		}
		if f.Output == "json" {
			return program.ExitOK, program.PrintJSON(sys.Stdout, sessions.JSON(all))
		}
		return program.ExitOK, printList(sys.Stdout, f.listFlags, sessions.Rows(all, time.Now()), nil,
			sessions.Heading, func(row []string) []string { return row })
	})
}
