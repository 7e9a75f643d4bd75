package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/execagent/execagent/cmd/agent/plain"
	"github.com/execagent/execagent/cmd/internal/commandline"
)

// commandHabits are commands of docker, kubectl, ssh and others, and what is the nearest here.
var commandHabits = map[string]string{
	"run": "exec", "ssh": "exec -t", "shell": "exec -t", "attach": "attach",
	"serve": "exec-server", "server": "exec-server", "start": "exec-server", "listen": "exec-server", "daemon": "exec-server",
	"status": "health", "ping": "health", "info": "doctor", "check": "doctor", "diagnose": "doctor",
	"scp": "cp", "copy": "cp", "top": "ps", "stop": "kill", "tunnel": "port-forward", "env": "environments",
}

// flagHabits are flags of the same programs, each with what it is here; the first that the command
// has counts.
var flagHabits = map[string][]string{
	"-p": {"--listen :PORT"}, "--port": {"--listen :PORT"}, "--bind": {"--listen IP:PORT"}, "--socket": {"--listen unix:///PATH", "--url unix:///PATH"},
	"-H": {"--url"}, "--host": {"--url", "--listen IP:PORT"}, "--server": {"--url"}, "--addr": {"--url", "--listen IP:PORT"}, "--address": {"--url", "--listen IP:PORT"},
	"--token": {"--token-file", "--ws-token-file"}, "--auth": {"--ws-auth"},
	"--environment": {"--environment-id"}, "--env-id": {"--environment-id"},
	"--cwd": {"-C"}, "--working-dir": {"--workdir"},
	"-v": {"--version", "--log-level debug"}, "-V": {"--version"}, "--verbose": {"--log-level debug"}, "--debug": {"--log-level debug"},
	"-9": {"--signal KILL"}, "-R": {"-r"}, "-o": {"--json"}, "--output": {"--json"},
}

// unknownFlag says that a command has no such flag.
func unknownFlag(word string, flags any) string {
	name, _, _ := strings.Cut(word, "=")
	known := []string{"--help"}
	if _, server := flags.(*serverFlags); server {
		known = append(known, "--version")
	}
	var short []string
	for _, f := range plain.Of(flags) {
		if !f.Arguments && !f.Hidden {
			known, short = append(known, "--"+f.Name), append(short, "-"+f.Short)
		}
	}
	near := ""
	if strings.HasPrefix(name, "--") {
		near = commandline.Meant(commandline.Near(name, known))
	}
	for _, habit := range flagHabits[name] {
		flag, _, _ := strings.Cut(habit, " ")
		if near == "" && (slices.Contains(known, flag) || slices.Contains(short, flag)) {
			near = commandline.Meant(habit)
		}
	}
	return fmt.Sprintf("unknown flag %s%s", name, near)
}

// wrong makes an error for a wrong line of the parser's error.
func wrong(command string, err error) error {
	name := cmp.Or(command, "exec-server")
	text := strings.TrimPrefix(err.Error(), name+": ")
	if word, ok := strings.CutPrefix(text, "unknown flag "); ok && newFlags(name) != nil {
		word, _, _ = strings.Cut(word, ", did you mean ")
		return commandline.UsageError(unknownFlag(word, newFlags(name)))
	}
	return commandline.Wrong(command, "exec-server", err)
}
