package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/execagent/execagent/cmd/agent/internal/transfer"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/protocol"
)

// exitNoMatch is the exit code of grep(1) if no line matches. Trouble is [program.ExitUsage].
const exitNoMatch = 1

// grepFlags say what is looked for, and where.
type grepFlags struct {
	hereFlags
	treeFlags
	IgnoreCase bool     `short:"i" name:"ignore-case" help:"Upper and lower case are the same."`
	Fixed      bool     `short:"F" name:"fixed-strings" help:"The pattern is text, and no regular expression."`
	Files      bool     `short:"l" name:"files-with-matches" help:"Print only the names of files that have a match."`
	Numbers    bool     `short:"n" name:"line-number" help:"Print the number of each line."`
	Quiet      bool     `short:"q" help:"Print nothing; only the exit code tells."`
	After      uint64   `short:"A" name:"after-context" placeholder:"N" help:"Print N lines after each match, at most 100."`
	Before     uint64   `short:"B" name:"before-context" placeholder:"N" help:"Print N lines before each match, at most 100."`
	Context    uint64   `short:"C" name:"lines-around" placeholder:"N" help:"Print N lines before and after each match, at most 100."`
	MaxCount   uint64   `short:"m" name:"max-count" placeholder:"N" help:"Print at most N matches of each file."`
	Globs      []string `short:"g" name:"glob" sep:"none" placeholder:"GLOB" help:"Search only files that match, such as '*.go' or 'src/**'. A glob without a slash is about names at every depth, one with a slash about paths below the directory. One that begins with ! leaves names out, and the last that matches decides. Can be repeated."`
	Recursive  bool     `short:"r" help:"Accepted, but not needed: directories are always searched with all below them."`
	Extended   bool     `short:"E" name:"extended-regexp" help:"Accepted, but not needed: patterns are always extended."`
	Output     string   `short:"o" name:"output" default:"text" enum:"text,json" placeholder:"FORMAT" help:"Output format: text, or json for programs (objects with path, line, column, length, text, textColumn, cut, before, after; with -l: path and kind). Default: ${default}."`

	Pattern string   `arg:"" name:"pattern" help:"Regular expression of RE2."`
	Paths   []string `arg:"" bytes:"" optional:"" sep:"none" name:"path" help:"Files and directories. Default: the working directory."`
}

func (*grepFlags) Help() string {
	return `Prints the lines of files that match a pattern: here, or on the agent that the flags name. No other program is needed there. Files come sorted by path, each line with the name of its file, unless the one path is a file. Names that begin with a dot are left out, and so are what a .gitignore names, and files with zero bytes at their beginning. Links are followed only if they are named. A line ends before LF or CRLF.

The pattern is a regular expression of RE2, which takes time in proportion to the text, whatever the pattern. It has no back references. Of a very long line the part around the match is printed. At most 10,000 matches are printed for a path. A line on standard error says if there are more.

Examples:

    agent grep -n 'func \w+Error' src
    agent grep --url 127.0.0.1:7000 -il todo --glob '*.{ts,tsx}' /srv/repo
    agent grep -F -C 2 'a.b(c)' main.go -o json | jq -r '.[].text'

Exit codes as those of grep(1): 0 when a line matches, 1 when none does, 2 when something could not be read, is left out because of a bound, or the command line is wrong; 124 after --timeout, 128+n after signal n.`
}

var errBothOutputs = errors.New("-0 cannot be used with -o json")

// checkTree refuses a depth that servers refuse.
func checkTree(depth uint64, others func() error) error {
	if depth > protocol.MaxSearchDepth {
		return fmt.Errorf("--max-depth %d is more than %d", depth, protocol.MaxSearchDepth)
	}
	return others()
}

// Check finds flags that contradict each other. The parser calls it.
func (f *grepFlags) Check() error {
	switch {
	case f.Pattern == "":
		return errors.New("the pattern is empty: to print whole files, use agent cat")
	case max(f.After, f.Before, f.Context) > protocol.MaxSearchContext:
		return fmt.Errorf("-A, -B and -C: %d is more than %d", max(f.After, f.Before, f.Context), protocol.MaxSearchContext)
	case f.MaxCount > protocol.MaxSearchMatches:
		return fmt.Errorf("-m %d is more than %d", f.MaxCount, protocol.MaxSearchMatches)
	}
	return checkTree(f.MaxDepth, f.hereFlags.Check)
}

func (f *grepFlags) run(sys program.System) int {
	params := f.params()
	params.Pattern, params.Literal, params.IgnoreCase, params.Globs = &f.Pattern, f.Fixed, f.IgnoreCase, f.Globs
	params.Before, params.After = new(max(f.Before, f.Context)), new(max(f.After, f.Context))
	if f.MaxCount > 0 {
		params.MaxFileMatches = &f.MaxCount
	}
	if f.Files || f.Quiet {
		params.MaxFileMatches, params.Before, params.After = new(uint64(1)), nil, nil
	}
	search := transfer.Search{
		Params: params, Names: f.Files, Numbers: f.Numbers, Quiet: f.Quiet,
		JSON: f.Output == "json", Terminal: program.NewTerminal(sys.Stdout) != nil,
	}
	return f.onPaths(sys, program.ExitUsage, f.Paths, func(ctx context.Context, there *transfer.Files, paths []string) (int, error) {
		found, err := there.Grep(ctx, program.Harmless(sys.Stdout), paths, search)
		switch {
		case err != nil:
			return 0, err
		case f.Quiet && found.Matches:
			return program.ExitOK, nil
		case found.Matches:
			return complained(sys, found.Trouble, program.ExitOK, program.ExitUsage), nil
		}
		return complained(sys, found.Trouble, exitNoMatch, program.ExitUsage), nil
	})
}

// complained prints what went wrong, and returns the exit code.
func complained(sys program.System, trouble []error, code, failure int) int {
	for _, err := range trouble {
		program.Complain(sys.Stderr, err)
	}
	if len(trouble) > 0 {
		return failure
	}
	return code
}
