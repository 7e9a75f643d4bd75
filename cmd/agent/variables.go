package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/execagent/execagent/cmd/internal/program"
)

// checkVariables refuses an -e without a name.
func checkVariables(entries []string) error {
	for _, entry := range entries {
		if name, _, _ := strings.Cut(entry, "="); name == "" {
			return fmt.Errorf("-e %q has no name", entry)
		}
	}
	return nil
}

// variablesOf returns the variables of entries NAME=VALUE and NAME. NAME alone passes on the variable
// of this process, if it is set, as docker run -e does. The last entry for a name counts.
func variablesOf(sys program.System, entries []string) map[string]string {
	all := map[string]string{}
	for _, entry := range entries {
		name, value, ok := strings.Cut(entry, "=")
		if !ok {
			value, ok = sys.Lookup(name)
		}
		if ok {
			all[name] = value
		}
	}
	return all
}

// withVariables returns an environment with these variables added or replaced.
func withVariables(environ []string, variables map[string]string) []string {
	all := slices.DeleteFunc(slices.Clone(environ), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		_, replaced := variables[name]
		return replaced
	})
	for name, value := range variables {
		all = append(all, name+"="+value)
	}
	return all
}
