package main

import (
	"context"
	"encoding/json"
	"os"

	"github.com/execagent/execagent/cmd/agent/doctor"
	"github.com/execagent/execagent/cmd/internal/program"
)

// runDoctor prints what can be enforced on this host. The exit code is 0 only if
// everything can.
func runDoctor(sys program.System, flags *doctorFlags) int {
	_, noState := flags.stateDir()
	d, err := doctor.Diagnose(context.Background(), doctor.Config{
		Argv0:    os.Args[0],
		Operator: flags.operator(),
		NoState:  noState,
	})
	if err != nil {
		return sys.Fail(err)
	}
	if flags.JSON {
		out := json.NewEncoder(sys.Stdout)
		out.SetEscapeHTML(false)
		out.SetIndent("", "  ")
		err = out.Encode(d)
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
