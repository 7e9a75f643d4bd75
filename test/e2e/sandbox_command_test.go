package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/creack/pty"

	"github.com/execagent/execagent/test/rig"
)

// TestSandboxTerminal: a shell in the sandbox has the terminal of agent sandbox, and its jobs
// have it in turn.
func TestSandboxTerminal(t *testing.T) {
	t.Parallel()
	u := atTerminal(t, &pty.Winsize{Rows: 33, Cols: 101}, "sandbox", "--", "env", "PS1=prompt>", "bash", "--norc", "--noprofile", "-i")
	u.enters(t, "stty size; test -t 0 && echo a terminal; echo its own >/dev/tty\r", "33 101\r\na terminal\r\nits own\r\n")
	u.enters(t, "sh -c 'trap \"exit 9\" INT; echo job; while :; do sleep 0.05; done'\r", "job\r\n")
	u.types(t, "\x03")
	u.sees(t, "prompt>") // what is typed before is lost
	u.enters(t, "echo ended $?\r", "ended 9\r\n")
	u.types(t, "exit 6\r")
	u.ends(t, 6)
}

// TestSandboxJob: a shell can stop and continue agent sandbox like any other job.
func TestSandboxJob(t *testing.T) {
	t.Parallel()
	u := atTerminal(t, &pty.Winsize{Rows: 24, Cols: 80}, "exec", "-t", "--", "env", "PS1=prompt>", "bash", "--norc", "--noprofile", "-i")
	u.enters(t, rig.Agent(t)+" sandbox -- sh -c 'trap \"on=1\" CONT; echo job; until [ $on ]; do sleep 0.05; done; echo back; read line; echo got $line; exit 4'\r", "job\r\n")
	u.enters(t, "\x1a", "Stopped", "prompt>")
	u.enters(t, "fg\r", "back\r\n")
	u.enters(t, "words\r", "got words\r\n")
	// A shell in the sandbox that took the terminal gives it back.
	u.enters(t, rig.Agent(t)+" sandbox -- bash --norc -ic 'echo inner'; echo code $?; cat\r", "code 0\r\n")
	u.enters(t, "more\r", "more\r\nmore\r\n")
	u.types(t, "\x04")
	u.types(t, "exit 7\r")
	u.ends(t, 7)
}

// TestSandboxKilled: when agent sandbox is killed, nothing of the command outlives it. Its
// placeholders may stay, and the next agent sandbox removes them.
func TestSandboxKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mark := fmt.Sprintf("sandbox-killed-%d", os.Getpid())
	a := withoutTerminal(t, mark, "setsid sleep 300 & trap '' TERM HUP; echo ready; wait; sleep 300", "sandbox", "--workspace", dir)
	a.says(t, "ready")
	rig.Check(t, rig.Err(os.Lstat(filepath.Join(dir, ".git"))))
	rig.Must(t, a.Process.Kill())
	noneLeft(t, mark)
	rig.Is(t, says(t, rig.Command(t, rig.Agent(t), "sandbox", "--workspace", dir, "--", "true")), "", "the next one")
	isEmpty(t, dir)
}

// TestSandboxOrphans: processes that the command leaves behind end with it, and nobody waits for
// output that they still make.
func TestSandboxOrphans(t *testing.T) {
	t.Parallel()
	mark := fmt.Sprintf("sandbox-orphans-%d", os.Getpid())
	a := withoutTerminal(t, mark, "setsid sleep 300 & exit 3", "sandbox")
	rig.Is(t, a.ended(t), "exit status 3", "the result")
	noneLeft(t, mark)
}

// TestSandboxStdin passes standard input on as it is, to its end.
func TestSandboxStdin(t *testing.T) {
	t.Parallel()
	cmd := rig.Command(t, rig.Agent(t), "sandbox", "--", "wc", "-c")
	cmd.Stdin = strings.NewReader(strings.Repeat("x", 1<<20))
	rig.Is(t, strings.TrimSpace(says(t, cmd)), "1048576", "wc")
}
