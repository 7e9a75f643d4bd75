package main

import (
	"github.com/execagent/execagent/cmd/internal/completion"
	"github.com/execagent/execagent/cmd/internal/program"
)

// runCompletion prints the completion script for a shell.
func runCompletion(sys program.System, flags *completionFlags) int {
	parser, err := newParser(sys.Stdout, sys.Stderr)
	if err != nil {
		return sys.Fail(err)
	}
	if _, err := sys.Stdout.Write(completion.Script(flags.Shell, parser.Model)); err != nil {
		return sys.Fail(err)
	}
	return program.ExitOK
}
