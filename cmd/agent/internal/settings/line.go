// Package settings decides which value of an option counts if the command line, variables of the
// environment and files each have one.
//
// [Grammar.Line] reads a command line into a [Line], and Grammar.Values adds the files. Grammar.Explain
// lists each option with the place of its value, for agent config show.
package settings

import (
	"fmt"
	"os"

	"github.com/execagent/execagent/cmd/internal/cli"
)

// Line has the values of the flags on a command line, as [cli.Fields.Given] finds them, and the
// values that a file requires.
type Line map[string]string

// Has reports whether a flag is given.
func (g Line) Has(name string) bool {
	_, ok := g[name]
	return ok
}

// Nameless refuses an empty name of an agent, as from an unset shell variable, because the command
// must not run on this machine instead.
func (g Line) Nameless() error {
	for _, name := range []string{"url", "registry"} {
		if g.Has(name) && g[name] == "" {
			return cli.UsageError(fmt.Sprintf("--%s is empty", name))
		}
	}
	return nil
}

// Prefer removes variables from this process's environment that contradict a flag on the command
// line, or a variable that takes precedence. A context, a URL or a registry names an agent. A token
// in a variable goes only to the agent or registry that variables name.
//
// serves says that the command is a server. For a server, AGENT_TLS_CA is about its registry.
func (g Line) Prefer(serves bool) {
	set := func(name string) bool { return os.Getenv(name) != "" }
	other := func(flag, name string) bool { return g.Has(flag) && set(name) && g[flag] != os.Getenv(name) }
	if other("url", "AGENT_URL") {
		drop("AGENT_TOKEN_FILE")
		drop(tlsVariables...)
	}
	if other("registry", "AGENT_REGISTRY") {
		drop("AGENT_REGISTRY_TOKEN_FILE")
	}
	switch {
	case g.Has("probe"):
		drop("AGENT_URL", "AGENT_REGISTRY", "AGENT_ENVIRONMENT_ID", "AGENT_REGISTRY_TRANSPORT", "AGENT_CONTEXT")
	case g.Has("context") || g.Has("local"):
		drop("AGENT_URL", "AGENT_REGISTRY", "AGENT_ENVIRONMENT_ID", "AGENT_REGISTRY_TRANSPORT")
	case g.Has("registry") && !g.Has("url"):
		drop("AGENT_URL", "AGENT_CONTEXT")
	case g.Has("url") && !g.Has("registry"):
		drop("AGENT_REGISTRY", "AGENT_ENVIRONMENT_ID", "AGENT_REGISTRY_TRANSPORT", "AGENT_CONTEXT")
	case set("AGENT_URL") || set("AGENT_REGISTRY"):
		drop("AGENT_CONTEXT")
	}
	if g.Has("local") {
		drop("AGENT_CONTEXT")
	}
	if !g.Has("url") && !set("AGENT_URL") {
		drop("AGENT_TOKEN_FILE")
		if !serves {
			drop(tlsVariables...)
		}
	}
	if !g.Has("registry") && !set("AGENT_REGISTRY") {
		drop("AGENT_REGISTRY_TOKEN_FILE")
		if g.Has("url") || g.Has("local") || set("AGENT_URL") { // otherwise a context may name a registry
			drop("AGENT_REGISTRY_TRANSPORT")
		}
	}
	switch {
	case g.Has("listen") && !g.Has("remote"):
		drop("AGENT_REMOTE", "AGENT_REMOTE_TRANSPORT", "AGENT_TRANSPORT")
	case g.Has("remote") && !g.Has("listen"):
		drop("AGENT_LISTEN")
	}
}

// tlsVariables are about the agent of AGENT_URL, like AGENT_TOKEN_FILE.
var tlsVariables = []string{"AGENT_TLS_CA", "AGENT_CLIENT_TLS_CERT", "AGENT_CLIENT_TLS_KEY", "AGENT_TLS_SERVER_NAME"}

func drop(names ...string) {
	for _, name := range names {
		_ = os.Unsetenv(name) // fails for a name with = or NUL
	}
}
