package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/test/rig"
)

// completionScript writes the script for a shell to a file.
func completionScript(t *testing.T, shell string) string {
	t.Helper()
	file := rig.Value(os.OpenFile(filepath.Join(t.TempDir(), "agent."+shell), os.O_CREATE|os.O_WRONLY, 0o644))
	defer file.Close()
	rig.Is(t, (&completionFlags{Shell: shell}).run(program.System{Stdout: file}), program.ExitOK, "exit code")
	return file.Name()
}

// needShell skips the test where the shell is not installed.
func needShell(t *testing.T, shell string) {
	t.Helper()
	if _, err := exec.LookPath(shell); err != nil {
		t.Skipf("%s is not installed", shell)
	}
}

// TestBashCompletion calls the script's function as bash does, with the words into
// which bash takes the command line apart.
func TestBashCompletion(t *testing.T) {
	t.Parallel()
	needShell(t, "bash")
	script := completionScript(t, "bash")
	dir := t.TempDir()
	for _, name := range []string{"file-1", "file-2"} {
		rig.Must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
	}
	rig.Must(t, os.Mkdir(filepath.Join(dir, "file-dir"), 0o755))
	known := knownWords(t)
	for line, want := range lines(t, "bash_completion") {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			words := strings.Fields(line)
			if last := len(words) - 1; words[last] == "_" {
				words[last] = ""
			}
			cmd := exec.CommandContext(t.Context(), "bash", append([]string{"--norc", "-c", `
				source "$1"; shift
				complete -p agent | grep -q -- '-F _agent agent' || exit 1
				COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
				_agent
				printf '%s\n' "${COMPREPLY[@]}"`, "bash", script}, words...)...)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "PATH="+pathOf(t, "true", "truncate", "grep")+":"+known)
			cmd.Stderr = t.Output()
			got, want := strings.Fields(string(rig.Value(cmd.Output()))), strings.Fields(want)
			slices.Sort(got)
			slices.Sort(want)
			// compgen -c lists a command twice that is also built into bash.
			rig.Same(t, "offered", want, slices.Compact(got), cmpopts.EquateEmpty())
		})
	}
}

// knownWords returns a folder with a program agent that knows some words, and tells by one
// which line it was asked for. One of them would be run if the shell expanded it.
func knownWords(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	script := `#!/bin/sh
kind=$2
shift 3
case $kind in
contexts) printf '%s\n' box prod ;;
sessions) echo job ;;
commands) echo exec ;;
environments) echo "environments-of-$*" | tr ' ' - ;;
esac
`
	rig.Must(t, rig.WriteProgram(filepath.Join(dir, "agent"), []byte(script)))
	rig.Must(t, os.Symlink(rig.Value(exec.LookPath("tr")), filepath.Join(dir, "tr")))
	return dir
}

// TestHostileWords: words that the program knows are offered as they are, and never run by
// the shell.
func TestHostileWords(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script := "#!/bin/sh\nprintf '%s\\n' '$(touch ran)' '`touch ran`' '*' '~root'\n"
	rig.Must(t, rig.WriteProgram(filepath.Join(dir, "agent"), []byte(script)))
	for shell, command := range map[string]string{
		"bash": `source "$1"; COMP_WORDS=(agent context use "") COMP_CWORD=3; _agent; printf '%s\n' "${COMPREPLY[@]}"`,
		"fish": `source $argv[1]; complete -C "agent context use "`,
	} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			needShell(t, shell)
			args := []string{"--norc", "-c", command, shell, completionScript(t, shell)}
			if shell == "fish" {
				args = []string{"--no-config", "-c", command, completionScript(t, shell)}
			}
			cmd := exec.CommandContext(t.Context(), shell, args...)
			cmd.Dir = t.TempDir()
			cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "PATH="+dir+":"+os.Getenv("PATH"))
			cmd.Stderr = t.Output()
			out := rig.Value(cmd.Output())
			if !strings.Contains(string(out), "$(touch ran)") || !strings.Contains(string(out), "`touch ran`") {
				t.Errorf("offered are\n%s", out)
			}
			rig.Is(t, rig.Err(os.Stat(filepath.Join(cmd.Dir, "ran"))), fs.ErrNotExist, "what a word would make")
		})
	}
}

// pathOf returns a PATH on which only these programs are found.
func pathOf(t *testing.T, programs ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range programs {
		rig.Must(t, os.Symlink(rig.Value(exec.LookPath(name)), filepath.Join(dir, name)))
	}
	return dir
}

func TestFishCompletion(t *testing.T) {
	t.Parallel()
	needShell(t, "fish")
	script, known := completionScript(t, "fish"), knownWords(t)
	for line, want := range lines(t, "fish_completion") {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), "fish", "--no-config", "-c", "source $argv[1]; complete -C $argv[2]", script, line)
			cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "PATH="+known+":"+os.Getenv("PATH"))
			cmd.Stderr = t.Output()
			got, _, _ := strings.Cut(strings.TrimSpace(string(rig.Value(cmd.Output()))), "\t")
			rig.Is(t, got, want, "offered")
		})
	}
}
