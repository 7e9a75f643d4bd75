// Package embed builds and runs, in a module of its own, the program of docs/api.md: it embeds the
// agent, a client and the sandbox, by the packages that a program outside this tree can import.
package embed

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// maxLines is how long the program may be: it is what a reader of docs/api.md sees first.
const maxLines = 40

// module is the path of this module.
const module = "github.com/execagent/execagent"

// TestEmbed: a program outside this tree needs nothing that it cannot import.
func TestEmbed(t *testing.T) {
	rig.Tier(t, rig.Merge) // another module is compiled
	t.Parallel()
	_, program, _ := strings.Cut(string(rig.Value(os.ReadFile("../../docs/api.md"))), "\n```go\n")
	program, _, _ = strings.Cut(program, "```\n")
	n := strings.Count(program, "\n")
	rig.Is(t, n > 0 && n <= maxLines, true, "the program has %d lines, at most %d", n, maxLines)
	dir := outside(t, program)
	goTool(t, dir, "build", "-o", "embed", ".")
	var complaints strings.Builder
	command := exec.Command(filepath.Join(dir, "embed"))
	command.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
	command.Stderr = &complaints
	output, err := command.Output()
	if strings.Contains(complaints.String(), "this host cannot enforce the sandbox") {
		t.Skip(complaints.String())
	}
	rig.Is(t, err, nil, "%s", complaints.String())
	rig.Is(t, string(output), "hello\ntouch, confined: 1\n", "it prints")
}

// outside makes a module with the program alone, which replaces this one by this tree, and returns
// its folder.
func outside(t *testing.T, program string) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	rig.Must(t, err)
	dir := t.TempDir()
	write := func(name string, text []byte) {
		rig.Must(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	write("main.go", []byte(program))
	for _, name := range []string{"go.mod", "go.sum"} { // the same versions, which are here
		write(name, rig.Value(os.ReadFile(filepath.Join(root, name))))
	}
	goTool(t, dir, "mod", "edit", "-module=example.com/embed", "-require="+module+"@v0.0.0", "-replace="+module+"="+root)
	return dir
}

// goTool runs the go command in a folder, with nothing but the modules that are here.
func goTool(t *testing.T, dir string, args ...string) {
	t.Helper()
	command := exec.Command("go", args...)
	command.Dir = dir
	command.Env = append(os.Environ(), "GOFLAGS=-mod=mod -trimpath -buildvcs=false", "GOPROXY=off", "GOWORK=off", "CGO_ENABLED=0")
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, output)
	}
}
