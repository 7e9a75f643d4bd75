package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/execagent/execagent/cmd/internal/program"
)

// installFlags name the place for the program.
type installFlags struct {
	Path string `arg:"" bytes:"" name:"path" help:"Folder, or file to create or replace."`
}

func (*installFlags) Help() string {
	return `Copies this program to PATH, where everybody can execute it. The agent's image has no other program that could copy it. In Kubernetes, an init container with that image can so put the agent beside the tools of another image.

Examples:

    agent install /shared
    agent install /shared/bin/agent

Exit codes: 0, 1 when it could not be copied, 2 for a wrong command line.`
}

func (f *installFlags) run(sys program.System) int {
	return sys.Exit(install("/proc/self/exe", f.Path))
}

// install copies the file at source to path, or into the folder at path under the name agent. An
// existing file stays until all of source is copied. If it is a running program, it goes on to run.
func install(source, path string) (err error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, "agent")
	}
	from, err := os.Open(source)
	if err != nil {
		return fmt.Errorf("installing the agent: %w", err)
	}
	defer func() { _ = from.Close() }() // it was only read
	to, err := os.CreateTemp(filepath.Dir(path), ".agent-")
	if err != nil {
		return fmt.Errorf("installing the agent: %w", err)
	}
	_, err = io.Copy(to, from)
	err = errors.Join(err, to.Chmod(0o755), to.Close())
	if err == nil {
		err = os.Rename(to.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("installing the agent: %w", errors.Join(err, os.Remove(to.Name())))
	}
	return nil
}
