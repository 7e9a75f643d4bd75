package main

import (
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/build"
)

// versionFlags say how to print the version.
type versionFlags struct {
	JSON bool `name:"json" env:"AGENT_VERSION_JSON" help:"Print the version as a JSON object."`
}

// run prints the build. The result is the exit code.
func (f *versionFlags) run(sys program.System) int {
	if err := build.This("agent").Print(sys.Stdout, f.JSON); err != nil {
		return sys.Fail(err)
	}
	return program.ExitOK
}
