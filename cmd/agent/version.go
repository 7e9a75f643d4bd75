package main

import (
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/build"
)

// runVersion prints the build. The result is the exit code.
func runVersion(sys program.System, flags *versionFlags) int {
	if err := build.This("agent").Print(sys.Stdout, flags.JSON); err != nil {
		return sys.Fail(err)
	}
	return program.ExitOK
}
