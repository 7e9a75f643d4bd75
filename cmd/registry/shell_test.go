package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestCompletion: the script of bash completes commands below others, flags and words, and
// the other two are scripts.
func TestCompletion(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script := filepath.Join(dir, shell)
		rig.Must(t, os.WriteFile(script, []byte(mustRun(t, "completion", shell)), 0o644))
		if _, err := exec.LookPath(shell); err != nil {
			continue
		}
		cmd := exec.CommandContext(t.Context(), shell, "-n", script)
		cmd.Env = append(os.Environ(), "LC_ALL=C") // a shell warns of a locale that this machine lacks
		out, err := cmd.CombinedOutput()
		rig.Is(t, string(out), "", "%s: %v", shell, err)
	}
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("there is no bash")
	}
	for _, row := range rig.Rows(t, "testdata/lines.txt", "completion", 2) {
		cmd := exec.CommandContext(t.Context(), "bash", append([]string{"--norc", "-c", `
			source "$1"; shift
			COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
			_registry
			printf '%s\n' "${COMPREPLY[@]}"`, "bash", filepath.Join(dir, "bash")}, strings.Split(row[0], " ")...)...)
		cmd.Stderr = t.Output()
		out, err := cmd.Output()
		got, want := strings.Fields(string(out)), strings.Fields(row[1])
		slices.Sort(got)
		slices.Sort(want)
		rig.Check(t, err)
		rig.Same(t, row[0], want, got)
	}
}
