// Package build knows the version of this module's programs, and the build information
// of the running program.
package build

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
	"sync"
)

// Compatible is the version of codex exec-server whose protocol we speak.
// Clients decide by it which features they use.
const Compatible = "0.171.0"

// unstamped is the version of programs that Go has stamped no version into, such as tests.
const unstamped = "0.0.0-dev"

// information is what the Go command has noted in this program. It is read once, because to read it is to parse it.
var information = sync.OnceValues(debug.ReadBuildInfo)

// Version is the version of this program, as Go has stamped it: the tag of its commit without the v. Without a
// tag it is a version that sorts after the last tag and names the commit. It ends in +dirty if the
// tree held changes that are in no commit.
func Version() string {
	info, ok := information()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return unstamped
	}
	return strings.TrimPrefix(info.Main.Version, "v")
}

// ExecutorVersion is what clients are told: the compatible version, with our own name and
// version after the +, which semantic versions do not compare. A version has one + at most.
func ExecutorVersion() string {
	return Compatible + "+execagent." + strings.ReplaceAll(Version(), "+", ".")
}

// Info is what a program prints of its build.
type Info struct {
	Program    string `json:"-"`
	Version    string `json:"version"`
	Commit     string `json:"commit"`
	Modified   bool   `json:"modified"` // the tree held changes that are in no commit
	Compatible string `json:"protocolCompatibility"`
	Executor   string `json:"executorVersion"`
	Go         string `json:"go"`
}

// This returns the version, and what the build has noted in this program.
func This(program string) Info {
	b := Info{Program: program, Version: Version(), Commit: "unknown", Compatible: Compatible, Executor: ExecutorVersion(), Go: "unknown"}
	info, ok := information()
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

// Print writes the build for people, or as a JSON object.
func (b Info) Print(w io.Writer, asJSON bool) error {
	if asJSON {
		out := json.NewEncoder(w)
		out.SetIndent("", "  ")
		return out.Encode(b)
	}
	modified := ""
	if b.Modified {
		modified = " (modified)"
	}
	_, err := fmt.Fprintf(w, "%s %s\ncommit %s%s\nprotocol compatible with codex exec-server %s\n%s\n",
		b.Program, b.Version, b.Commit, modified, b.Compatible, b.Go)
	return err
}
