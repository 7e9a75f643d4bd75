package main

import "github.com/execagent/execagent/cmd/internal/cli"

// habits maps words of docker, kubectl, ssh and others to the words of this program.
var habits = cli.Habits{
	Commands: map[string]string{
		"run": "exec", "ssh": "exec -t", "shell": "exec -t", "attach": "attach",
		"serve": "exec-server", "server": "exec-server", "start": "exec-server", "listen": "exec-server", "daemon": "exec-server",
		"status": "health", "ping": "health", "info": "doctor", "check": "doctor", "diagnose": "doctor",
		"scp": "cp", "copy": "cp", "top": "ps", "stop": "kill", "tunnel": "port-forward", "env": "environments",
		"mv": "exec -- mv", "stats": "exec -- top", "logout": "context remove", "get": "ps", "inspect": "ps -o json",
		"search": "grep", "netstat": "ports", "ss": "ports", "lsof": "ports",
		"delete": "end", "remove": "end", "forward": "port-forward",
		"config view": "show", "config list": "show", "config get": "show",
		"context current": "show", "context inspect": "show", "context get": "list", "context create": "add", "context update": "add --replace",
		"context delete": "remove", "context switch": "use", "context use-context": "use", "context current-context": "show",
	},
	// The first replacement that the command has is used.
	Flags: map[string][]string{
		"-p": {"--listen 127.0.0.1:PORT"}, "--port": {"--listen 127.0.0.1:PORT"}, "--bind": {"--listen IP:PORT"}, "--socket": {"--listen unix:///PATH", "--url unix:///PATH"},
		"-H": {"--url"}, "--host": {"--url", "--listen IP:PORT"}, "--server": {"--url"}, "--addr": {"--url", "--listen IP:PORT"}, "--address": {"--url", "--listen IP:PORT"},
		"--token": {"--token-file", "--ws-token-file"}, "--auth": {"--ws-auth"},
		"--environment": {"--environment-id"}, "--env-id": {"--environment-id"},
		"--cwd": {"-C"}, "--working-dir": {"--workdir"},
		"-v": {"--version"}, "-V": {"--version"}, "--verbose": {"--log-level debug"}, "--debug": {"--log-level debug"},
		"-9": {"--signal KILL"}, "-T": {"--signal TERM"}, "-I": {"--signal INT"}, "-R": {"-r"}, "-o": {"--json"}, "--output": {"--json"},
		"--format": {"-o json"}, "--filter": {"-o json"}, "--no-trunc": {"-o json"}, "--selector": {"-o json"},
		"--key-file": {"--api-key-file"}, "--registry-token-file": {"--api-key-file"}, "--token-file": {"--api-key-file"},
		"--token-command": {"--token-file <(COMMAND)"},
	},
	Advice: map[string]string{
		"port-forward -L": "; leave -L out and write LOCAL:HOST:PORT",
		"ls -R":           "; agent find lists whole trees",
		"ls -t":           "; agent exec -- ls -t sorts by time",
		"ls -d":           "; agent exec -- ls -d lists directories themselves",
		"exec-server -H":  "; write it after the command, as --url or --context",
	},
	// These flags may stand before the command, as with docker and kubectl.
	Places: []string{"--context", "--config", "--url", "--token-file", "--registry", "--environment-id", "--registry-token-file"},
}
