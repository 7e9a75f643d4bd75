package main

import (
	"context"

	"github.com/execagent/execagent/cmd/agent/internal/transfer"
	"github.com/execagent/execagent/cmd/internal/program"
)

// lsFlags name the files to list, and say how.
type lsFlags struct {
	agentFlags
	Long   bool   `short:"l" name:"long" help:"Also print the kind (- file, d directory, l link and others), mode, owner, group, size in bytes, the time of the last change, and what a link leads to. An exec-server of another make reports only kind, size and time."`
	All    bool   `short:"a" name:"all" help:"Also list names that begin with a dot."`
	Human  bool   `name:"human-readable" help:"With -l, print sizes such as 1.5K or 20M. -lh is the short form; -h alone prints this help."`
	One    bool   `short:"1" name:"one" help:"Accepted, but not needed: each file is always on its own line."`
	Output string `short:"o" name:"output" default:"table" enum:"table,json" placeholder:"FORMAT" help:"Output format: table, or json for programs (objects with name, path, type, link, size, modified, mode, owner, group, target). Default: ${default}."`

	Paths []string `arg:"" bytes:"" optional:"" sep:"none" name:"path" help:"Files and directories. Default: the agent's working directory."`
}

func (*lsFlags) Help() string {
	return `Lists files on an agent, one on each line, sorted by name. A relative path starts at the agent's working directory. The JSON type of a link is that of the file that the link points to, or missing. An exec-server of another make leaves broken links out. For whole trees, use agent find.

Examples:

    agent ls --url 127.0.0.1:7000 -lh /srv
    agent ls --url 127.0.0.1:7000 -o json | jq -r '.[].path'

Exit codes: 0, 1 when something could not be listed, 124 after --timeout, 128+n after signal n, 2 for a wrong command line.`
}

func (f *lsFlags) Check() error { return f.validPaths(f.Paths) }

func (f *lsFlags) run(sys program.System) int {
	return f.onFiles(sys, func(ctx context.Context, there *transfer.Files) error {
		paths := f.Paths
		if len(paths) == 0 {
			paths = []string{there.Dir}
		}
		listing := transfer.Listing{
			Long: f.Long, All: f.All, Human: f.Human, JSON: f.Output == "json", Terminal: program.NewTerminal(sys.Stdout) != nil,
		}
		return there.List(ctx, sys.Stdout, paths, listing)
	})
}
