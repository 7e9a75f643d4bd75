package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/execagent/execagent/cmd/internal/program"
)

// completionScript writes the script for a shell to a file.
func completionScript(t *testing.T, shell string) string {
	t.Helper()
	file, err := os.OpenFile(filepath.Join(t.TempDir(), "agent."+shell), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if code := runCompletion(program.System{Stdout: file}, &completionFlags{Shell: shell}); code != program.ExitOK {
		t.Fatalf("exit code %d", code)
	}
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
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "file-dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	const levels = "debug info warn error"
	files := "file-1 file-2 file-dir"
	tests := []struct {
		words string // the last one is being completed; _ stands for an empty word
		want  string
	}{
		{"agent e", "exec-server exec"},
		{"agent ver", "version"},
		{"agent --listen ws://127.0.0.1:0 --log-l", "--log-level"},
		{"agent --log-level _", levels},
		{"agent --log-level = _", levels},
		{"agent exec-server --log-level w", "warn"},
		{"agent --ws-token-f", "--ws-token-file"},
		{"agent --ws-token-file file-", files},
		{"agent --ws-auth _", "capability-token signed-bearer-token"},
		{"agent --listen _", ""},
		{"agent version --j", "--json"},
		{"agent completion b", "bash"},
		{"agent exec --ur", "--url"},
		{"agent exec --url ws://127.0.0.1:0 --tok", "--token-file"},
		{"agent exec -C fil", "file-dir"},
		{"agent exec --dir = fil", "file-dir"},
		{"agent sandbox --work", "--workspace"},
		{"agent sandbox --workspace fil", "file-dir"},
		{"agent sandbox --policy fil", files},
		{"agent sandbox --network _", "on off"},
		{"agent sandbox --network off -- tru", "true truncate"},
		{"agent doctor --j", "--json"},
		{"agent exec tru", "true truncate"},
		{"agent exec -t -e A=1 tru", "true truncate"},
		{"agent exec -- tru", "true truncate"},
		{"agent exec -- cat file-", files},
		{"agent exec -t -C / cat file-", files},
		{"agent exec cat -", ""},
	}
	for _, tt := range tests {
		t.Run(tt.words, func(t *testing.T) {
			t.Parallel()
			words := strings.Fields(tt.words)
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
			cmd.Env = append(os.Environ(), "PATH="+pathOf(t, "true", "truncate", "grep"))
			cmd.Stderr = t.Output()
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			got, want := strings.Fields(string(out)), strings.Fields(tt.want)
			slices.Sort(got)
			slices.Sort(want)
			// compgen -c lists a command twice that is also built into bash.
			if diff := cmp.Diff(want, slices.Compact(got)); diff != "" && (len(want) > 0 || len(got) > 0) {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// pathOf returns a PATH on which only these programs are found.
func pathOf(t *testing.T, programs ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range programs {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestCompletionSyntax(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish"} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			needShell(t, shell)
			if out, err := exec.CommandContext(t.Context(), shell, "-n", completionScript(t, shell)).CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

func TestFishCompletion(t *testing.T) {
	t.Parallel()
	needShell(t, "fish")
	script := completionScript(t, "fish")
	for line, want := range map[string]string{
		"agent ver":              "version",
		"agent exec --ur":        "--url",
		"agent --log-level de":   "debug",
		"agent completion fi":    "fish",
		"agent exec --token-fil": "--token-file",
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), "fish", "--no-config", "-c", "source $argv[1]; complete -C $argv[2]", script, line)
			cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
			cmd.Stderr = t.Output()
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			got, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\t")
			if got != want {
				t.Errorf("got %q, want %q", out, want)
			}
		})
	}
}

// TestZshCompletion: the script registers its function. The test does not see what
// the function offers: that would take zsh's line editor at a terminal.
func TestZshCompletion(t *testing.T) {
	t.Parallel()
	needShell(t, "zsh")
	script := completionScript(t, "zsh")
	cmd := exec.CommandContext(t.Context(), "zsh", "-f", "-c", `
		autoload -U compinit && compinit -u -D
		source $1
		[[ $_comps[agent] == _agent ]] && (( $+functions[_agent] ))`, "zsh", script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
