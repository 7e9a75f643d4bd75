package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/creack/pty"

	"github.com/execagent/execagent/test/rig"
)

// TestSandboxOwnTerminal: the terminal that a command has of its own is its controlling one,
// follows the size of the user's, and gets what is typed, also keys that send signals.
func TestSandboxOwnTerminal(t *testing.T) {
	t.Parallel()
	eachSandbox(t, func(t *testing.T, sandbox func(...string) *exec.Cmd) {
		cmd := sandbox("-t", "--", "sh", "-c", "trap 'stty size' WINCH; trap 'exit 6' INT; stty size; [ $(tty) = $USERS ] || echo ready >/dev/tty; while :; do sleep 0.05; done")
		cmd.Args = append([]string{"sh", "-c", `USERS=$(tty) exec "$@"`, "sh"}, cmd.Args...)
		u := at(t, exec.Command(cmd.Args[0], cmd.Args[1:]...), &pty.Winsize{Rows: 33, Cols: 101})
		u.sees(t, "33 101\r\nready\r\n")
		u.resizes(t)
		u.types(t, "\x03")
		u.ends(t, 6)
	})
}

// TestSandboxOwnTerminalSignals: a signal for agent sandbox -t reaches the command, and a killed one
// leaves nothing behind.
func TestSandboxOwnTerminalSignals(t *testing.T) {
	t.Parallel()
	eachSandbox(t, func(t *testing.T, sandbox func(...string) *exec.Cmd) {
		u := at(t, sandbox("-t", "--", "sh", "-c", "trap 'exit 5' USR1; echo ready; while :; do sleep 0.05; done"), wide)
		u.sees(t, "ready\r\n")
		rig.Must(t, u.Process.Signal(syscall.SIGUSR1))
		u.ends(t, 5)

		mark := fmt.Sprintf("own-terminal-%d-%s", os.Getpid(), filepath.Base(t.Name()))
		u = at(t, sandbox("-t", "--", "sh", "-c", "trap '' TERM; echo ready; sleep 300"), wide, "E2E_MARK="+mark)
		u.sees(t, "ready\r\n")
		rig.Must(t, u.Process.Kill())
		noneLeft(t, mark)
	})
}

// TestSandboxOwnTerminalAsks: the user is asked at their terminal, where they see what they type, and
// what they type afterwards is for the command.
func TestSandboxOwnTerminalAsks(t *testing.T) {
	t.Parallel()
	dir := rules(t, `prefix_rule(["id"], "prompt", justification = "who")
`)
	eachSandbox(t, func(t *testing.T, sandbox func(...string) *exec.Cmd) {
		u := at(t, sandbox("-t", "--exec-policy", dir, "--exec-policy-enforce", "start", "--", "id", "-u"), wide)
		u.answers(t, "o\r")
		u.sees(t, "o\r\n0\r\n")
		u.ends(t, 0)

		u = at(t, sandbox("-t", "--exec-policy", dir, "--exec-policy-enforce", "tree", "--",
			"sh", "-c", "i=id; $i -u; echo code $?; read x; $i -g; echo code $?; read x; echo got $x"), wide)
		u.sees(t, "who:")
		u.answers(t, "o\r")
		u.sees(t, "o\r\n0\r\ncode 0\r\n")
		u.types(t, "on\r") // a question does not wait for the output before it
		u.answers(t, "n\r")
		u.sees(t, "code 126\r\n")
		u.enters(t, "mine\r", "mine\r\ngot mine\r\n")
		u.ends(t, 0)
	})
}
