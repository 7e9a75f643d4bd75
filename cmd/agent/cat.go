package main

import (
	"context"

	"github.com/execagent/execagent/cmd/agent/internal/transfer"
	"github.com/execagent/execagent/cmd/internal/program"
)

// catFlags name the files to print.
type catFlags struct {
	agentFlags
	Paths []string `arg:"" bytes:"" sep:"none" name:"path" help:"Files to print."`
}

func (*catFlags) Help() string {
	return `Prints files from an agent, one after the other. A relative path starts at the agent's working directory.

Example:

    agent cat --url 127.0.0.1:7000 /etc/os-release

Exit codes: 0, 1 when a file could not be printed, 124 after --timeout, 128+n after signal n, 2 for a wrong command line.`
}

func (f *catFlags) Check() error { return f.validPaths(f.Paths) }

func (f *catFlags) run(sys program.System) int {
	return f.onFiles(sys, func(ctx context.Context, there *transfer.Files) error {
		return there.Cat(ctx, sys.Stdout, f.Paths)
	})
}
