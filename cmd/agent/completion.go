package main

import "github.com/execagent/execagent/cmd/agent/completion"

// runCompletion prints the completion script for a shell.
func runCompletion(sys system, flags *completionFlags) int {
	parser, err := newParser(sys.stdout, sys.stderr)
	if err != nil {
		return sys.fail(err)
	}
	if _, err := sys.stdout.Write(completion.Script(flags.Shell, parser.Model)); err != nil {
		return sys.fail(err)
	}
	return exitOK
}
