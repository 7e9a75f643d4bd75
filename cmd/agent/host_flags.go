package main

import (
	"github.com/execagent/execagent/internal/sandbox/placeholder"
	"github.com/execagent/execagent/sandbox"
)

// hostFlags are settings of a host, which exec-server, sandbox and doctor have. On one host, they
// must be the same for all three.
type hostFlags struct {
	SandboxMinimum  string `default:"" enum:",full" env:"AGENT_SANDBOX_MINIMUM" group:"sandbox" placeholder:"LAYERS" help:"full refuses commands that this host can confine only without namespaces, even if it can do so exactly."`
	SandboxMetadata string `default:"hidden" enum:"hidden,visible" env:"AGENT_SANDBOX_METADATA" group:"sandbox" placeholder:"hidden|visible" help:"For hosts without namespaces: visible lets a command see size and times of files that it may not read. This makes looking at files faster."`
	PIDNamespace    string `name:"linux-sandbox-pid-namespace" default:"isolate" enum:"isolate,inherit" env:"AGENT_LINUX_SANDBOX_PID_NAMESPACE" group:"sandbox" placeholder:"isolate|inherit" help:"inherit lets confined commands see all processes of the host, and signal those of their user, even the agent. They cannot read the memory or the variables of others. Use it only in a container, or on a machine that runs nothing else. Default: ${default}."`
	StateDir        string `env:"AGENT_STATE_DIR" group:"sandbox" type:"path" placeholder:"DIR" help:"Private folder for records of placeholders (such as an empty .git while a command runs). The records are needed to clean up after a crash. All agents of a user must use the same folder. Default: one in /dev/shm, XDG_RUNTIME_DIR, /run or /tmp."`
}

// stateDir returns the folder for records of placeholders, and makes it if it is missing.
func (f *hostFlags) stateDir() (string, error) {
	if f.StateDir != "" {
		return placeholder.StateDir(f.StateDir)
	}
	return placeholder.StateDir(placeholder.StateDirs()...)
}

// operator returns the operator's requirements for the layers of the sandbox.
func (f *hostFlags) operator() sandbox.Operator {
	return sandbox.Operator{RequireNamespaces: f.SandboxMinimum == "full", VisibleMetadata: f.SandboxMetadata == "visible", InheritPIDs: f.PIDNamespace == "inherit"}
}
