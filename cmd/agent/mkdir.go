package main

import (
	"context"

	"github.com/execagent/execagent/cmd/agent/internal/transfer"
	"github.com/execagent/execagent/cmd/internal/program"
)

// mkdirFlags name the directories to make.
type mkdirFlags struct {
	agentFlags
	Parents bool `short:"p" name:"parents" help:"Also make the parent directories. An existing directory is no error."`

	Paths []string `arg:"" bytes:"" sep:"none" name:"path" help:"Directories."`
}

func (*mkdirFlags) Help() string {
	return `Makes directories on an agent. A relative path starts at the agent's working directory.

Example:

    agent mkdir --url 127.0.0.1:7000 -p /srv/w/build/out

Exit codes: 0, 1 when a directory could not be made, 124 after --timeout, 128+n after signal n, 2 for a wrong command line.`
}

func (f *mkdirFlags) Check() error { return f.validPaths(f.Paths) }

func (f *mkdirFlags) run(sys program.System) int {
	return f.onFiles(sys, func(ctx context.Context, there *transfer.Files) error {
		return there.Mkdir(ctx, f.Paths, f.Parents)
	})
}
