package main

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime/debug"

	"github.com/execagent/execagent/cmd/agent/program"
)

const (
	// version is the version of the release.
	version = "0.1.0"
	// compatible is the version of codex exec-server whose protocol we speak.
	// Clients decide by it which features they use.
	compatible = "0.169.0"
	// executorVersion is what clients are told: the compatible version, with our
	// own name and version after the +, which semantic versions do not compare.
	executorVersion = compatible + "+execagent." + version
)

// build is what agent version prints.
type build struct {
	Version    string `json:"version"`
	Commit     string `json:"commit"`
	Modified   bool   `json:"modified"` // the tree held changes that are in no commit
	Compatible string `json:"protocolCompatibility"`
	Executor   string `json:"executorVersion"`
	Go         string `json:"go"`
}

// thisBuild returns the version, and what the build has noted in this program.
func thisBuild() build {
	b := build{Version: version, Commit: "unknown", Compatible: compatible, Executor: executorVersion, Go: "unknown"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	b.Go = info.GoVersion
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

// print writes the build for people.
func (b build) print(w io.Writer) error {
	modified := ""
	if b.Modified {
		modified = " (modified)"
	}
	_, err := fmt.Fprintf(w, "agent %s\ncommit %s%s\nprotocol compatible with codex exec-server %s\n%s\n",
		b.Version, b.Commit, modified, b.Compatible, b.Go)
	return err
}

// runVersion prints the build. The result is the exit code.
func runVersion(sys program.System, flags *versionFlags) int {
	b := thisBuild()
	var err error
	if flags.JSON {
		out := json.NewEncoder(sys.Stdout)
		out.SetIndent("", "  ")
		err = out.Encode(b)
	} else {
		err = b.print(sys.Stdout)
	}
	if err != nil {
		return sys.Fail(err)
	}
	return program.ExitOK
}
