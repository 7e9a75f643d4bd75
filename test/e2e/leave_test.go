package e2e

import (
	"syscall"
	"testing"

	"github.com/creack/pty"

	"github.com/execagent/execagent/test/rig"
)

// TestExecEscapes: ~ at the start of a line is for exec.
func TestExecEscapes(t *testing.T) {
	t.Parallel()
	u := atTerminal(t, &pty.Winsize{Rows: 24, Cols: 80}, "exec", "-t", "--", "sh", "-c", "stty -echo; echo ready; cat")
	u.sees(t, "ready\r\n")
	u.enters(t, "~?", "~? prints this help\r\n")
	u.enters(t, "~~.\r", "~.\r\n")
	u.enters(t, "x~.\r", "x~.\r\n")
	u.enters(t, "~.", "agent: ended by ~. at the terminal")
	u.ends(t, 125)
}

// TestExecLeavesFrozenServer: a server that does nothing any more can be left.
func TestExecLeavesFrozenServer(t *testing.T) {
	t.Parallel()
	server := startAgent(t, "none", "--listen", "ws://127.0.0.1:0")
	u := atTerminal(t, &pty.Winsize{Rows: 24, Cols: 80}, "exec", "-t", "--url", server.line(t), "--", "sh", "-c", "echo ready; cat")
	u.sees(t, "ready\r\n")
	rig.Must(t, server.Process.Signal(syscall.SIGSTOP))
	t.Cleanup(func() { _ = server.Process.Signal(syscall.SIGCONT) }) // so that it can end
	u.enters(t, "typed\r~.", "agent: ended by ~. at the terminal")
	u.ends(t, 125)
}

// TestExecInterrupts: a command that does not heed Ctrl-C is left by three of them within a
// second.
func TestExecInterrupts(t *testing.T) {
	t.Parallel()
	u := atTerminal(t, &pty.Winsize{Rows: 24, Cols: 80}, "exec", "--", "sh", "-c",
		"trap 'echo caught' INT; echo ready; while :; do sleep 0.01; done")
	u.sees(t, "ready\r\n")
	// The kernel makes one signal of several that have not been taken yet, and a slow machine
	// may need a while for three. A write to a terminal that nobody has open any more may not
	// return, so nobody waits for it.
	go func() {
		for {
			if _, err := u.ptmx.Write([]byte{3}); err != nil {
				return
			}
		}
	}()
	u.ends(t, 128+2)
}

// TestExecInBackground: what is typed for the shell is not read by an exec in the background,
// and exec is not stopped.
func TestExecInBackground(t *testing.T) {
	t.Parallel()
	u := inShell(t)
	path, open := gate(t)
	u.enters(t, "$AGENT exec -- sh -c 'echo begun; read x <"+path+"; echo done; cat' &\r", "begun\r\n")
	u.enters(t, "echo one $((1+1))\r", "one 2\r\n")
	u.types(t, "wait %1 2>/dev/null; jobs; echo now\r")
	open()
	u.sees(t, "done\r\n")
	// In the foreground it reads.
	u.types(t, "\x03")
	u.enters(t, "fg %1\r", "exec -- sh -c")
	u.enters(t, "for the command\r", "for the command\r\nfor the command\r\n")
	u.types(t, "\x04")
	u.types(t, "exit 9\r")
	u.ends(t, 9)
}
