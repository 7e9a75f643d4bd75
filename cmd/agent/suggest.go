package main

import (
	"fmt"
	"strings"

	"github.com/execagent/execagent/cmd/internal/commandline"
)

// unknownFlag is the error for a word that looks like a flag, where the command of another
// program has to begin.
func unknownFlag(word string, flags any) error {
	name, _, _ := strings.Cut(word, "=")
	var known []string
	for _, f := range plainFields(flags) {
		if !f.arguments && !f.hidden {
			known = append(known, "--"+f.name)
		}
	}
	near := ""
	if strings.HasPrefix(name, "--") {
		if meant := commandline.Near(name, known); meant != "" {
			near = "; did you mean " + meant + "?"
		}
	}
	return fmt.Errorf("unknown flag %s%s (a command that begins with - comes after --)", name, near)
}

// givenFlags tells which flags are on a command line, up to the command of another program.
func givenFlags(args []string, fields []plainField) map[string]bool {
	p := plain{fields}
	given := map[string]bool{}
	for len(args) > 0 {
		arg := args[0]
		if !strings.HasPrefix(arg, "-") || arg == "--" {
			break
		}
		args = args[1:]
		name, _, inline := strings.Cut(arg, "=")
		f := p.find(name)
		if f == nil {
			continue
		}
		given[f.name] = true
		if !f.boolean() && !inline && len(args) > 0 {
			args = args[1:]
		}
	}
	return given
}
