package main

import (
	"context"

	"github.com/execagent/execagent/cmd/agent/internal/transfer"
	"github.com/execagent/execagent/cmd/internal/program"
)

// rmFlags name the files to remove.
type rmFlags struct {
	agentFlags
	Recursive bool `short:"r" name:"recursive" help:"Also remove directories, with everything below them."`
	Force     bool `short:"f" name:"force" help:"A missing file is no error."`

	Paths []string `arg:"" bytes:"" sep:"none" name:"path" help:"Files and directories."`
}

func (*rmFlags) Help() string {
	return `Removes files on an agent. Of a link, it removes the link itself, never the file that the link points to. A relative path starts at the agent's working directory. It never removes the working directory, a directory above it, or a path that ends in . or ..

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
