package main

import (
	"context"
	"os"

	"github.com/execagent/execagent/cmd/agent/internal/doctor"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/sandbox/placeholder"
	"github.com/execagent/execagent/sandbox"
)

// doctorFlags say how to print, and for which agent to look.
type doctorFlags struct {
	JSON bool `name:"json" env:"AGENT_DOCTOR_JSON" help:"Print it as a JSON object."`
	hostFlags
}

func (*doctorFlags) Help() string {
	return `Every layer is tried in a process that ends at once; nothing is inferred from versions. For each kind of policy it says whether it is enforced exactly, for processes and for file requests, or refused.

Exit codes: 0 when everything can be enforced, 1 when something cannot, 2 for a wrong command line.`
}

// run prints what can be enforced on this host. The exit code is 0 only if
// everything can.
func (f *doctorFlags) run(sys program.System) int {
	_, noState := f.stateDir()
	d, err := doctor.Diagnose(context.Background(), doctor.Config{
		Argv0:    os.Args[0],
		Operator: f.operator(),
		NoState:  noState,
	})
	if err != nil {
		return sys.Fail(err)
	}
	if f.JSON {
		err = program.PrintJSON(sys.Stdout, d)
	} else {
		err = d.Print(sys.Stdout)
	}
	switch {
	case err != nil:
		return sys.Fail(err)
	case !d.Enforceable:
		return program.ExitFailure
	}
	return program.ExitOK
}

// hostFlags are settings of a host. They have to be the same for every agent there
// and for agent sandbox and agent doctor, so all of these have them.
type hostFlags struct {
	SandboxMinimum  string `default:"" enum:",full" env:"AGENT_SANDBOX_MINIMUM" group:"sandbox" placeholder:"LAYERS" help:"full refuses commands that could only be confined without namespaces, even where that is exact."`
	SandboxMetadata string `default:"hidden" enum:"hidden,visible" env:"AGENT_SANDBOX_METADATA" group:"sandbox" placeholder:"hidden|visible" help:"Where there are no namespaces: visible lets a command that may not read a file learn its size and times; looking at files costs less then."`
	StateDir        string `env:"AGENT_STATE_DIR" group:"sandbox" type:"path" placeholder:"DIR" help:"Private folder for records of placeholders (an empty .git and the like, while a command runs), to clean up after a crash. All agents of a user need the same. Default: one in /dev/shm, XDG_RUNTIME_DIR, /run or /tmp."`
}

// stateDir returns the folder for records of placeholders, and makes it if needed.
// An error says why there is none.
func (f *hostFlags) stateDir() (string, error) {
	if f.StateDir != "" {
		return placeholder.StateDir(f.StateDir)
	}
	return placeholder.StateDir(placeholder.StateDirs()...)
}

// operator returns which layers will do.
func (f *hostFlags) operator() sandbox.Operator {
	return sandbox.Operator{RequireNamespaces: f.SandboxMinimum == "full", VisibleMetadata: f.SandboxMetadata == "visible"}
}
