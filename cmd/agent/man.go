package main

import (
	"github.com/execagent/execagent/cmd/agent/habits"
	"github.com/execagent/execagent/cmd/internal/commandline"
	"github.com/execagent/execagent/cmd/internal/manual"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/build"
)

// manFlags name the page.
type manFlags struct {
	Command []string `arg:"" optional:"" complete:"commands" help:"Command that the page is about, as in: agent man context add. Default: all of it."`
	Dir     string   `type:"path" placeholder:"DIR" help:"Write the pages of all commands to this folder."`
}

func (*manFlags) Help() string {
	return `Examples:

    agent man exec | man -l -
    agent man --dir /usr/local/share/man/man1`
}

func (f *manFlags) run(sys program.System) int {
	parser, err := newParser(sys.Stdout, sys.Stderr)
	if err != nil {
		return sys.Fail(err)
	}
	if f.Dir != "" {
		return sys.Exit(manual.Write(f.Dir, parser.Model, build.Version))
	}
	if _, err := commandline.Command(parser.Model, f.Command, habits.Commands); err != nil {
		program.Complain(sys.Stderr, err)
		return program.ExitUsage
	}
	command, err := manual.Find(parser.Model, f.Command)
	if err != nil {
		return sys.Fail(err)
	}
	_, err = sys.Stdout.Write(manual.Page(parser.Model, command, build.Version))
	return sys.Exit(err)
}
