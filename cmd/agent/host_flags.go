package main

import (
	"github.com/execagent/execagent/internal/sandbox/placeholder"
	"github.com/execagent/execagent/sandbox"
)

// hostFlags are settings of a host, which exec-server, sandbox and doctor have. They have
// to be the same for all of them on a host.
type hostFlags struct {
	SandboxMinimum  string `default:"" enum:",full" env:"AGENT_SANDBOX_MINIMUM" group:"sandbox" placeholder:"LAYERS" help:"full refuses commands that could only be confined without namespaces, even where that is exact."`
	SandboxMetadata string `default:"hidden" enum:"hidden,visible" env:"AGENT_SANDBOX_METADATA" group:"sandbox" placeholder:"hidden|visible" help:"Where there are no namespaces: visible lets a command that may not read a file learn its size and times; looking at files costs less then."`
	StateDir        string `env:"AGENT_STATE_DIR" group:"sandbox" type:"path" placeholder:"DIR" help:"Private folder for records of placeholders (an empty .git and the like, while a command runs), to clean up after a crash. All agents of a user need the same. Default: one in /dev/shm, XDG_RUNTIME_DIR, /run or /tmp."`
}

// stateDir returns the folder for records of placeholders, and makes it if it is missing.
func (f *hostFlags) stateDir() (string, error) {
	if f.StateDir != "" {
		return placeholder.StateDir(f.StateDir)
	}
	return placeholder.StateDir(placeholder.StateDirs()...)
}

// operator returns the layers of the sandbox that the operator accepts.
func (f *hostFlags) operator() sandbox.Operator {
	return sandbox.Operator{RequireNamespaces: f.SandboxMinimum == "full", VisibleMetadata: f.SandboxMetadata == "visible"}
}
