package main

import (
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/build"
)

// versionFlags say how to print the version.
type versionFlags struct {
	JSON   bool   `name:"json" env:"AGENT_VERSION_JSON" help:"Print the version as a JSON object, as -o json does."`
	Output string `short:"o" name:"output" default:"text" enum:"text,json" placeholder:"FORMAT" help:"Output format: text, or json for programs. Default: ${default}."`
}

// run prints the build. The result is the exit code.
func (f *versionFlags) run(sys program.System) int {
	if err := build.This("agent").Print(sys.Stdout, f.JSON || f.Output == "json"); err != nil {
		return sys.Fail(err)
	}
	return program.ExitOK
}
