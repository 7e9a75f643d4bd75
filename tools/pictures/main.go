package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// root is the root of the repository, relative to the module of the tools.
const root = ".."

// folder has the pictures and the recording.
var folder = filepath.Join(root, "docs", "pictures")

// recording is the name of the recording.
const recording = "exec.cast"

// pictures are the names of the files, with the function that draws each of them.
var pictures = []struct {
	name string
	draw func(root string) (string, error)
}{
	{"overview.svg", drawOverview},
	{"processes.svg", drawProcesses},
	{"packages.svg", drawPackages},
	{"network.svg", drawNetwork},
	{"exec.svg", drawTerminal},
}

func main() {
	agent := flag.String("record", "", "record the terminal again, with the agent at this `path`; a relative one begins in tools")
	flag.Parse()
	if err := run(*agent); err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

func run(agent string) error {
	if agent != "" {
		const key = 45 * time.Millisecond // between two typed keys
		cast, err := record(agent, key)
		if err != nil {
			return fmt.Errorf("recording: %w", err)
		}
		if err := os.WriteFile(filepath.Join(folder, recording), cast, 0o644); err != nil {
			return err
		}
	}
	for _, p := range pictures {
		text, err := p.draw(root)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if err := os.WriteFile(filepath.Join(folder, p.name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
