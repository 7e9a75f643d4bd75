package main

import (
	"iter"
	"slices"
)

// A target is a system and an architecture that programs are built for, as Go names them.
type target struct {
	System       string
	Architecture string
}

// String is the part of a file's name that names the target.
func (t target) String() string { return t.System + "_" + t.Architecture }

// Executable is the name of the file of a program.
func (t target) Executable(program string) string {
	if t.System == "windows" {
		return program + ".exe"
	}
	return program
}

var targets = []target{
	{"linux", "amd64"},
	{"linux", "arm64"},
}

// targetsOf are the targets of a system.
func targetsOf(system string) []target {
	return slices.DeleteFunc(slices.Clone(targets), func(t target) bool { return t.System != system })
}

// A program is one command of the product. Each has archives of its own: an archive of all three would be
// 20 MB, and most users need the agent alone.
type program struct {
	Name    string
	Package string // of Go
	Product string // the first part of the names of its artefacts, and its folder in share/doc
	Shells  bool   // it prints its completion scripts, and has man pages
	Systems []string
	Units   []string // files of deploy/systemd
	Extra   []string // other files of the repository, for share/doc
	XZ      bool     // its archive is compressed by xz, because it would be too large otherwise
}

var programs = []program{
	{
		Name: "agent", Package: "./cmd/agent", Product: "execagent", Shells: true, Systems: []string{"linux"},
		Units: []string{"agent.service", "agent-remote.service"}, Extra: []string{"deploy/seccomp-agent.json"},
	},
	{Name: "agent-mcp", Package: "./cmd/agent/agent-mcp", Product: "execagent-mcp", Systems: []string{"linux"}},
	{
		Name: "registry", Package: "./cmd/registry", Product: "execagent-registry", Shells: true, Systems: []string{"linux"},
		Units: []string{"registry.service"}, XZ: true,
	},
}

// builds are the programs of each target.
func builds() iter.Seq2[target, program] {
	return func(yield func(target, program) bool) {
		for _, t := range targets {
			for _, p := range programs {
				if p.For(t) && !yield(t, p) {
					return
				}
			}
		}
	}
}

// For reports whether the program is built for a target.
func (p program) For(t target) bool { return slices.Contains(p.Systems, t.System) }

// Ending is the ending of the program's archive for a target.
func (p program) Ending(t target) string {
	switch {
	case t.System == "windows":
		return "zip"
	case p.XZ:
		return "tar.xz"
	}
	return "tar.gz"
}
