package main

import (
	"context"
	"slices"

	"github.com/execagent/execagent/cmd/agent/internal/transfer"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/protocol"
)

// treeFlags say which files of a tree are looked at.
type treeFlags struct {
	Hidden   bool   `help:"Also look at names that begin with a dot."`
	NoIgnore bool   `help:"Also look at what a .gitignore names."`
	MaxDepth uint64 `name:"max-depth" default:"256" placeholder:"N" help:"How deep to go; 0 looks only at what is in the directory itself. Default and maximum: ${default}."`
}

// findFlags say which names are looked for, and where.
type findFlags struct {
	hereFlags
	treeFlags
	Names  []string `name:"name" sep:"none" placeholder:"GLOB" help:"Print only names that match, such as '*.go' or 'src/**/*.{ts,tsx}'. A glob without a slash is about names at every depth, one with a slash about paths below the directory. One that begins with ! leaves names out, and the last that matches decides. Can be repeated."`
	Type   string   `enum:",f,d,l" default:"" placeholder:"f|d|l" help:"Print only files (f), directories (d) or links (l)."`
	Null   bool     `short:"0" name:"null" help:"End each path with a zero byte instead of a newline, for xargs -0."`
	Output string   `short:"o" name:"output" default:"text" enum:"text,json" placeholder:"FORMAT" help:"Output format: text, or json for programs (objects with path and kind). Default: ${default}."`

	Dirs []string `arg:"" bytes:"" optional:"" sep:"none" name:"dir" help:"Directories. Default: the working directory."`
}

func (*findFlags) Help() string {
	return `Prints the files, directories and links below directories, sorted by path: here, or on the agent that the flags name. Names that begin with a dot are left out, and so is what a .gitignore names. Links are not followed. -name, -type and -maxdepth may be written as for find(1).

At most 10,000 paths are printed for a directory. A line on standard error says if there are more.

Examples:

    agent find -name '*.go' src
    agent find --url 127.0.0.1:7000 --name '!*_test.go' --name 'cmd/**/*.go' /srv/repo
    agent find --hidden --no-ignore -type f -0 | xargs -0 sha256sum

Exit codes: 0, 1 when something could not be read or is left out because of a bound, 124 after --timeout, 128+n after signal n, 2 for a wrong command line.`
}

// Check finds flags that contradict each other. The parser calls it.
func (f *findFlags) Check() error {
	if f.Null && f.Output == "json" {
		return errBothOutputs
	}
	return checkTree(f.MaxDepth, f.hereFlags.Check)
}

func (f *findFlags) run(sys program.System) int {
	params := f.params()
	params.Globs = f.Names
	if f.Type != "" {
		params.Kind = new(map[string]protocol.FileKind{"f": protocol.KindFile, "d": protocol.KindDirectory, "l": protocol.KindSymlink}[f.Type])
	}
	search := transfer.Search{Params: params, Null: f.Null, JSON: f.Output == "json", Terminal: program.NewTerminal(sys.Stdout) != nil}
	return f.onPaths(sys, program.ExitFailure, f.Dirs, func(ctx context.Context, there *transfer.Files, dirs []string) (int, error) {
		found, err := there.Find(ctx, program.Harmless(sys.Stdout), dirs, search)
		if err != nil {
			return 0, err
		}
		return complained(sys, found.Trouble, program.ExitOK, program.ExitFailure), nil
	})
}

// params are those of a search that finds as much as a server gives.
func (f *treeFlags) params() protocol.SearchParams {
	return protocol.SearchParams{
		Hidden: f.Hidden, NoIgnore: f.NoIgnore, MaxDepth: &f.MaxDepth,
		MaxMatches: new(uint64(protocol.MaxSearchMatches)), MaxFiles: new(uint64(protocol.MaxSearchFiles)),
		MaxLineBytes: new(uint64(protocol.MaxSearchLineBytes)), TimeoutMs: new(uint64(protocol.MaxSearchMs)),
	}
}

// findWords writes the words that find(1) spells with one dash as this program spells them.
func findWords(args []string) []string {
	args = slices.Clone(args)
	for i, word := range args {
		switch word {
		case "--":
			return args
		case "-name", "-type":
			args[i] = "-" + word
		case "-maxdepth":
			args[i] = "--max-depth"
		case "-print0":
			args[i] = "--null"
		}
	}
	return args
}
