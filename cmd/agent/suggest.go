package main

import (
	"cmp"
	"strings"

	"github.com/execagent/execagent/cmd/agent/habits"
	"github.com/execagent/execagent/cmd/agent/plain"
	"github.com/execagent/execagent/cmd/internal/commandline"
)

// asHere makes a line as the parser reads it of one as users of other programs type it.
func asHere(args []string) ([]string, error) {
	args = habits.CommandFirst(args, func(command string) bool { return newFlags(command) == nil })
	if flags := newFlags(commandOf(args)); flags != nil {
		return habits.WithoutHelp(args, plain.Of(flags))
	}
	return args, nil
}

// unknownFlag says that a command has no such flag.
func unknownFlag(command, word string, flags any) string {
	others := []string{"--help"}
	if _, server := flags.(*serverFlags); server {
		others = append(others, "--version")
	}
	return habits.UnknownFlag(command, word, plain.Of(flags), others...)
}

// wrong makes an error for a wrong line of the parser's error.
func wrong(command string, err error) error {
	name := cmp.Or(command, "exec-server")
	flags := newFlags(name)
	if flags == nil {
		return commandline.Wrong(err)
	}
	if word, ok := strings.CutPrefix(err.Error(), "unknown flag "); ok {
		word, _, _ = strings.Cut(word, ", did you mean ")
		return commandline.UsageError(unknownFlag(name, word, flags))
	}
	said := string(commandline.Wrong(err))
	if flag, ok := strings.CutSuffix(said, " needs a value"); ok {
		said += habits.Values(plain.Of(flags), flag)
	}
	return commandline.UsageError(said)
}
