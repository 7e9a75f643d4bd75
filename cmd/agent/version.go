package main

import (
	"github.com/alecthomas/kong"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/build"
)

// versionFlag is --version. Like --help it takes effect before the parser looks at
// the rest of the line.
type versionFlag bool

// BeforeReset prints the version and exits. The parser calls it.
func (versionFlag) BeforeReset(line *kong.Context) error {
	if err := build.This("agent").Print(line.Stdout, false); err != nil {
		return err
	}
	line.Exit(program.ExitOK)
	return nil
}

// versionFlags say how to print the version.
type versionFlags struct {
	JSON bool `name:"json" env:"AGENT_VERSION_JSON" help:"Print it as a JSON object."`
}

// run prints the build. The result is the exit code.
func (f *versionFlags) run(sys program.System) int {
	if err := build.This("agent").Print(sys.Stdout, f.JSON); err != nil {
		return sys.Fail(err)
	}
	return program.ExitOK
}
