package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/execagent/execagent/cmd/internal/program"
)

// checkVariables finds an -e without a name.
func checkVariables(entries []string) error {
	for _, entry := range entries {
		if name, _, _ := strings.Cut(entry, "="); name == "" {
			return fmt.Errorf("-e %q has no name", entry)
		}
	}
	return nil
}

// variablesOf returns the variables of entries NAME=VALUE and NAME; of one name the last entry
// counts. Without a value the variable of this process is passed on, if it is set, as docker run -e
// does.
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

// withVariables returns an environment in which the variables have taken the place of others of
// their names.
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
