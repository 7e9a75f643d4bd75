// Package habits knows what users of docker, kubectl, ssh and others type, and says what that is
// here.
package habits

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/execagent/execagent/cmd/agent/plain"
	"github.com/execagent/execagent/cmd/internal/commandline"
)

// Commands are commands of docker, kubectl, ssh and others, and what is the nearest here.
var Commands = map[string]string{
	"run": "exec", "ssh": "exec -t", "shell": "exec -t", "attach": "attach",
	"serve": "exec-server", "server": "exec-server", "start": "exec-server", "listen": "exec-server", "daemon": "exec-server",
	"status": "health", "ping": "health", "info": "doctor", "check": "doctor", "diagnose": "doctor",
	"scp": "cp", "copy": "cp", "top": "ps", "stop": "kill", "tunnel": "port-forward", "env": "environments",
	"mv": "exec -- mv", "stats": "exec -- top", "logout": "context remove", "get": "ps", "inspect": "ps -o json",
	"delete": "end", "remove": "end", "forward": "port-forward",
	"config view": "show", "config list": "show", "config get": "show",
	"context current": "show", "context inspect": "show", "context get": "list", "context create": "add", "context update": "add --replace",
	"context delete": "remove", "context switch": "use", "context use-context": "use", "context current-context": "show",
}

// flags are flags of the same programs, each with what it is here; the first that the command
// has counts.
var flags = map[string][]string{
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
}

// advice is what is said of flags of other programs, by command and flag, of which there is nothing
// like it among the flags.
var advice = map[string]string{
	"port-forward -L": "; a forward comes without it, as LOCAL:HOST:PORT",
	"ls -R":           "; agent exec -- ls -R lists all below",
	"ls -t":           "; agent exec -- ls -t sorts by time",
	"ls -d":           "; agent exec -- ls -d lists directories themselves",
	"exec-server -H":  "; it comes after the command, as --url or --context",
}

// UnknownFlag says that a command has no such flag, and which one may be meant. fields are the
// flags that it has, others those that are none of its own.
func UnknownFlag(command, word string, fields plain.Fields, others ...string) string {
	name, _, _ := strings.Cut(word, "=")
	known := others
	var short []string
	for _, f := range fields {
		if !f.Arguments && !f.Hidden {
			known, short = append(known, "--"+f.Name), append(short, "-"+f.Short)
		}
	}
	near := ""
	if strings.HasPrefix(name, "--") {
		near = commandline.Meant(commandline.Near(name, known))
	}
	for _, habit := range flags[name] {
		flag, _, _ := strings.Cut(habit, " ")
		if near == "" && (slices.Contains(known, flag) || slices.Contains(short, flag)) {
			near = commandline.Meant(habit)
		}
	}
	return fmt.Sprintf("unknown flag %s%s", name, cmp.Or(near, advice[command+" "+name]))
}

// Values are the words that a flag takes, as the end of a text that says that one is missing.
func Values(fields plain.Fields, flag string) string {
	f := fields.Find(flag)
	if f == nil || len(f.Enum) == 0 {
		return ""
	}
	values := slices.DeleteFunc(slices.Clone(f.Enum), func(value string) bool { return value == "" })
	return ": " + strings.Join(values, " or ")
}
