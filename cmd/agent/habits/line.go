package habits

import (
	"slices"
	"strings"

	"github.com/execagent/execagent/cmd/agent/plain"
	"github.com/execagent/execagent/cmd/internal/commandline"
)

// placeFlags say where an agent is, with a value. docker and kubectl have theirs before the
// command.
var placeFlags = []string{"--context", "--config", "--url", "--token-file", "--registry", "--environment-id", "--registry-token-file"}

// CommandFirst moves a command before the flags that say where its agent is. above tells
// of a command whether it has others below it.
func CommandFirst(args []string, above func(command string) bool) []string {
	n := 0
	for n < len(args) {
		name, _, inline := strings.Cut(args[n], "=")
		if !slices.Contains(placeFlags, name) {
			break
		}
		n++
		if !inline {
			n++
		}
	}
	if n == 0 || n >= len(args) || strings.HasPrefix(args[n], "-") {
		return args
	}
	words := 1
	if n+1 < len(args) && above(args[n]) {
		words++ // as context list
	}
	return slices.Concat(args[n:n+words], args[:n], args[n+words:])
}

// WithoutHelp takes -h out of several letters behind one dash, where the parser would print help:
// who types ls -lh wants sizes for people, and gets them. Other commands have no such flag. fields
// are the flags of the command, which is the first of args.
func WithoutHelp(args []string, fields plain.Fields) ([]string, error) {
	program := slices.ContainsFunc(fields, func(f plain.Field) bool { return f.Passthrough })
	for i, word := range args {
		if i > 0 && (word == "--" || program && !strings.HasPrefix(word, "-")) {
			break
		}
		if len(word) < 3 || word[0] != '-' || word[1] == '-' {
			continue
		}
		for letter := range strings.SplitSeq(word[1:], "") {
			if letter == "h" {
				if fields.Find("--human-readable") == nil {
					return args, commandline.UsageError("unknown flag -h; alone it is help")
				}
				letters := strings.ReplaceAll(word, "h", "")
				return slices.Concat(args[:i], []string{letters, "--human-readable"}, args[i+1:]), nil
			}
			if f := fields.Find("-" + letter); f == nil || !f.Boolean() {
				break // it is wrong, or what follows is its value
			}
		}
	}
	return args, nil
}
