package main

import (
	"context"

	"github.com/execagent/execagent/cmd/agent/internal/transfer"
	"github.com/execagent/execagent/cmd/internal/program"
)

// rmFlags say what to remove.
type rmFlags struct {
	agentFlags
	Recursive bool `short:"r" name:"recursive" help:"Also directories, with all below them."`
	Force     bool `short:"f" name:"force" help:"It is no error if nothing is there."`

	Paths []string `arg:"" sep:"none" name:"path" help:"Files and directories."`
}

func (*rmFlags) Help() string {
	return `Removes files of an agent, and links, never what those lead to. A relative path is below the agent's working directory. That itself, what is above it, and a path that ends in . or .. are never removed.

Examples:

    agent rm --url 127.0.0.1:7000 /tmp/report.txt
    agent rm --url 127.0.0.1:7000 -rf /srv/w/build

Exit codes: 0, 1 when something could not be removed, 124 after --timeout, 128+n after signal n, 2 for a wrong command line.`
}

func (f *rmFlags) Check() error { return f.validPaths(f.Paths) }

func (f *rmFlags) run(sys program.System) int {
	return f.onFiles(sys, func(ctx context.Context, there *transfer.Files) error {
		return there.Remove(ctx, f.Paths, f.Recursive, f.Force)
	})
}
