package main

import (
	"context"
	"fmt"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/agent/sessions"
	"github.com/execagent/execagent/cmd/internal/program"
)

// psFlags say how the sessions of an agent are listed.
type psFlags struct {
	agentFlags
	Output string `short:"o" default:"table" enum:"table,json" placeholder:"table|json" help:"How to print them. Default: ${default}."`
	All    bool   `short:"a" help:"Nothing: all are listed, also what has ended. For the habit."`
	Quiet  bool   `short:"q" help:"Print the names only."`
}

func (*psFlags) Help() string {
	return `A session has a name if agent exec gave it one, by --name or -d. Listed are yours, oldest first: those of the same user or token, or of all who may use the agent where it cannot tell them apart. With "exited" the exit code is shown; agent logs prints the output.

Examples:

    agent ps --url 127.0.0.1:7000
    agent ps --url 127.0.0.1:7000 -o json | jq '.[] | select(.attached | not) | .name'

Exit codes: 0, 1 when agent itself failed, 2 for a wrong command line.`
}

// Validate finds flags that contradict each other. The parser calls it.
func (f *psFlags) Validate() error { return f.validate() }

func runPs(sys program.System, flags *psFlags) int {
	return flags.on(sys, program.ExitFailure, func(ctx context.Context, c *client.Client) (int, error) {
		if flags.Quiet {
			listed, err := c.Sessions(ctx)
			for _, s := range listed {
				if _, err := fmt.Fprintln(sys.Stdout, s.Name); err != nil {
					return 0, err
				}
			}
			return program.ExitOK, err
		}
		all, err := sessions.All(ctx, c)
		if err != nil {
			return 0, err
		}
		if flags.Output == "json" {
			return program.ExitOK, sessions.PrintJSON(sys.Stdout, all)
		}
		return program.ExitOK, sessions.PrintTable(sys.Stdout, all, time.Now())
	})
}
