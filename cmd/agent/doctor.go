package main

import (
	"context"
	"os"

	"github.com/execagent/execagent/cmd/agent/internal/doctor"
	"github.com/execagent/execagent/cmd/internal/program"
)

// doctorFlags say how to print the diagnosis, and for which agent to make it.
type doctorFlags struct {
	JSON   bool   `name:"json" env:"AGENT_DOCTOR_JSON" help:"Print the result as a JSON object, as -o json does."`
	Output string `short:"o" name:"output" default:"text" enum:"text,json" placeholder:"FORMAT" help:"Output format: text, or json for programs. Default: ${default}."`
	hostFlags
}

func (*doctorFlags) Help() string {
	return `Tries every layer of the sandbox in a short-lived process; it concludes nothing from versions. For each kind of policy it reports whether this host enforces the policy exactly or refuses it, for processes and for file requests.

Exit codes: 0 when everything can be enforced, 1 when something cannot, 2 for a wrong command line.`
}

// run prints which policies can be enforced on this host. The exit code is 0 only if everything can
// be enforced.
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
	if f.JSON || f.Output == "json" {
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
