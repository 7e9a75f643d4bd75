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

// TestSandboxJob: a shell can stop and continue agent sandbox like any other job, also where the
// command has a terminal of its own.
func TestSandboxJob(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string]string{"shared": "", "own": " -t", "asks": " --exec-policy " + rules(t, "") + " --exec-policy-enforce start"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stopsAndGoesOn(t, rig.Agent(t)+" sandbox"+flags)
		})
	}
}

func stopsAndGoesOn(t *testing.T, sandbox string) {
	t.Helper()
	u := atTerminal(t, &pty.Winsize{Rows: 24, Cols: 80}, "exec", "-t", "--", "env", "PS1=prompt>", "bash", "--norc", "--noprofile", "-i")
	u.enters(t, sandbox+" -- bash -c 'trap \"on=1\" CONT; for stop in 1 2; do on=; echo job; until [ $on ]; do sleep 0.05; done; done; read line; echo got $line; exit 4'\r", "job\r\n")
	u.enters(t, "\x1a", "Stopped", "prompt>")
	u.enters(t, "fg\r", "job\r\n")
	u.enters(t, "\x1a", "Stopped", "prompt>")
	u.enters(t, "fg\r", "exit 4'\r\n")
	u.enters(t, "words\r", "got words\r\n", "prompt>")
	// A shell in the sandbox that took the terminal gives it back.
	u.enters(t, sandbox+" -- bash --norc -ic 'echo inner'; echo code $?; cat\r", "code 0\r\n")
	u.enters(t, "more\r", "more\r\nmore\r\n")
	u.enters(t, "\x04", "prompt>")
	// In the background it runs, and stops when it reads. In a pipeline it reads when it wants to.
	u.enters(t, sandbox+" -- bash -c 'echo begun; read line; echo got $line' &\r", "begun\r\n")
	u.types(t, "until jobs | grep Stopp; do sleep 0.05; done\r")
	u.sees(t, "Stopped", "prompt>")
	u.enters(t, "fg\r", "read line")
	u.enters(t, "words\r", "got words\r\n", "prompt>")
	u.enters(t, sandbox+" -- bash -c 'echo to pipe $((1+1)); read line </dev/tty; echo read $line; exit 5' | cat; echo codes ${PIPESTATUS[*]}\r", "to pipe 2")
	u.enters(t, "from the user\r", "read from the user", "codes 5 0\r\n", "prompt>")
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

// TestOwnTerminal: the terminal that a command has of its own is its controlling one, follows the size
// of the user's, and gets what is typed, also keys that send signals.
func TestOwnTerminal(t *testing.T) {
	t.Parallel()
	own := func(t *testing.T, started func(...string) *exec.Cmd) {
		cmd := started("-t", "--", "sh", "-c", "trap 'stty size' WINCH; trap 'exit 6' INT; stty size; [ $(tty) = $USERS ] || echo ready >/dev/tty; while :; do sleep 0.05; done")
		cmd.Args = append([]string{"sh", "-c", `USERS=$(tty) exec "$@"`, "sh"}, cmd.Args...)
		u := at(t, exec.Command(cmd.Args[0], cmd.Args[1:]...), &pty.Winsize{Rows: 33, Cols: 101})
		u.sees(t, "33 101\r\nready\r\n")
		for _, size := range []pty.Winsize{{Rows: 7, Cols: 9}, {Rows: 400, Cols: 300}} {
			rig.Must(t, pty.Setsize(u.ptmx.file, &size))
			u.ptmx.heedDeadlines(t)
			u.sees(t, fmt.Sprintf("%d %d\r\n", size.Rows, size.Cols))
		}
		u.types(t, "\x03")
		u.ends(t, 6)
	}
	eachSandbox(t, own)
	t.Run("exec", func(t *testing.T) {
		t.Parallel()
		own(t, func(args ...string) *exec.Cmd {
			return rig.Command(t, rig.Agent(t), append([]string{"exec"}, args...)...)
		})
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
		u.answers(t, "o\r", "o\r\n0\r\n")
		u.ends(t, 0)

		u = at(t, sandbox("-t", "--exec-policy", dir, "--exec-policy-enforce", "tree", "--",
			"sh", "-c", "i=id; $i -u; echo code $?; read x; $i -g; echo code $?; read x; echo got $x"), wide)
		u.sees(t, "who:")
		u.answers(t, "o\r", "o\r\n0\r\ncode 0\r\n")
		u.types(t, "on\r") // a question does not wait for the output before it
		u.answers(t, "n\r", "code 126\r\n")
		u.enters(t, "mine\r", "mine\r\ngot mine\r\n")
		u.ends(t, 0)
	})
}

// eachMeans runs a test with namespaces and where nobody can make any, for which launch comes
// before the name of a program.
func eachMeans(t *testing.T, test func(t *testing.T, launch []string)) {
	t.Helper()
	t.Run("namespaces", func(t *testing.T) {
		t.Parallel()
		test(t, nil)
	})
	t.Run("supervised", func(t *testing.T) {
		rig.Tier(t, rig.Merge)
		t.Parallel()
		test(t, []string{rig.Launcher(t, t.TempDir()), "--"})
	})
}

// eachSandbox runs a test for each way in which agent sandbox starts a command. sandbox returns
// a command of it with these arguments.
func eachSandbox(t *testing.T, test func(t *testing.T, sandbox func(args ...string) *exec.Cmd)) {
	t.Helper()
	run := func(t *testing.T, launch []string, flags ...string) {
		t.Helper()
		test(t, func(args ...string) *exec.Cmd {
			all := append(append([]string{}, launch...), rig.Agent(t), "sandbox")
			all = append(append(all, flags...), args...)
			return rig.Command(t, all[0], all[1:]...)
		})
	}
	eachMeans(t, func(t *testing.T, launch []string) { run(t, launch) })
	t.Run("none", func(t *testing.T) {
		rig.Tier(t, rig.Merge)
		t.Parallel()
		everything := filepath.Join(t.TempDir(), "policy.json")
		rig.Must(t, os.WriteFile(everything, []byte(`{"windowsSandboxLevel":"disabled","permissions":{"type":"disabled"}}`), 0o600))
		run(t, nil, "--policy", everything)
	})
}
