package main

import (
	"cmp"
	"fmt"
	"os"

	"github.com/execagent/execagent/cmd/agent/plain"
	"github.com/execagent/execagent/cmd/internal/commandline"
)

// given has the values of the flags that are on a command line, as [plain.Fields.Given] finds them.
type given map[string]string

func (g given) has(name string) bool {
	_, ok := g[name]
	return ok
}

// givenOn returns what is given on a command line; nothing for a command whose flags only the
// parser knows.
func givenOn(args []string) given {
	command := commandOf(args)
	flags := newFlags(cmp.Or(command, "exec-server"))
	if flags == nil {
		return nil
	}
	if command != "" {
		args = args[1:]
	}
	return plain.Of(flags).Given(args)
}

// nameless finds an agent that is named by nothing, as by a variable of a shell that is not
// set: the command must not run here instead.
func (g given) nameless() error {
	for _, name := range []string{"url", "registry"} {
		if g.has(name) && g[name] == "" {
			return commandline.UsageError(fmt.Sprintf("--%s is empty", name))
		}
	}
	return nil
}

// homeless finds an environment whose registry is not given: the command must not run here
// instead.
func (g given) homeless(flags any) error {
	exec, ok := flags.(*execFlags)
	if ok && g.has("environment-id") && !exec.Elsewhere() {
		return commandline.UsageError("--environment-id needs --registry")
	}
	return nil
}

// prefer takes variables out of this process's environment that would contradict a flag on the
// command line, or variables that come before them. An agent is named by a context, by its URL
// or by its registry. A token without what it is for is of no use, and that of a variable is not
// shown to another agent or registry than the variables name.
//
// Of a server AGENT_TLS_CA is about its registry.
func (g given) prefer(serves bool) {
	set := func(name string) bool { return os.Getenv(name) != "" }
	other := func(flag, name string) bool { return g.has(flag) && set(name) && g[flag] != os.Getenv(name) }
	if other("url", "AGENT_URL") {
		drop("AGENT_TOKEN_FILE")
		drop(tlsVariables...)
	}
	if other("registry", "AGENT_REGISTRY") {
		drop("AGENT_REGISTRY_TOKEN_FILE")
	}
	switch {
	case g.has("probe"):
		drop("AGENT_URL", "AGENT_REGISTRY", "AGENT_ENVIRONMENT_ID", "AGENT_CONTEXT")
	case g.has("context") || g.has("local"):
		drop("AGENT_URL", "AGENT_REGISTRY", "AGENT_ENVIRONMENT_ID")
	case g.has("registry") && !g.has("url"):
		drop("AGENT_URL", "AGENT_CONTEXT")
	case g.has("url") && !g.has("registry"):
		drop("AGENT_REGISTRY", "AGENT_ENVIRONMENT_ID", "AGENT_CONTEXT")
	case set("AGENT_URL") || set("AGENT_REGISTRY"):
		drop("AGENT_CONTEXT")
	}
	if g.has("local") {
		drop("AGENT_CONTEXT")
	}
	if !g.has("url") && !set("AGENT_URL") {
		drop("AGENT_TOKEN_FILE")
		if !serves {
			drop(tlsVariables...)
		}
	}
	if !g.has("registry") && !set("AGENT_REGISTRY") {
		drop("AGENT_REGISTRY_TOKEN_FILE")
	}
	switch {
	case g.has("listen") && !g.has("remote"):
		drop("AGENT_REMOTE")
	case g.has("remote") && !g.has("listen"):
		drop("AGENT_LISTEN")
	}
}

// tlsVariables are about the agent of AGENT_URL, as AGENT_TOKEN_FILE is.
var tlsVariables = []string{"AGENT_TLS_CA", "AGENT_CLIENT_TLS_CERT", "AGENT_CLIENT_TLS_KEY", "AGENT_TLS_SERVER_NAME"}

func drop(names ...string) {
	for _, name := range names {
		_ = os.Unsetenv(name) // fails for a name with = or NUL
	}
}
