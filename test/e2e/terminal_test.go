package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

// user is somebody at a terminal in which agent exec runs.
type user struct {
	*exec.Cmd
	ptmx   patient
	screen *bufio.Reader
}

// atTerminal runs an agent in a terminal.
func atTerminal(t *testing.T, size *pty.Winsize, args ...string) *user {
	t.Helper()
	return at(t, exec.Command(rig.Agent(t), args...), size)
}

// inShell runs a shell with job control in a terminal; $AGENT is the agent.
func inShell(t *testing.T) *user {
	t.Helper()
	cmd := exec.Command("bash", "--norc", "--noprofile", "-i")
	cmd.Env = append(os.Environ(), "AGENT="+rig.Agent(t))
	return at(t, cmd, &pty.Winsize{Rows: 24, Cols: 200})
}

func at(t *testing.T, cmd *exec.Cmd, size *pty.Winsize, environ ...string) *user {
	t.Helper()
	u := &user{Cmd: cmd}
	if u.Env == nil {
		u.Env = os.Environ()
	}
	u.Env = append(append(u.Env, "TERM=vt220", "PS1="), environ...)
	ptmx, err := pty.StartWithSize(u.Cmd, size)
	rig.Must(t, err)
	u.ptmx = patient{ptmx}
	u.ptmx.heedDeadlines(t)
	u.screen = bufio.NewReader(u.ptmx)
	t.Cleanup(func() {
		_ = u.Process.Kill() // it has ended, unless the test failed
		_ = u.Wait()
		u.ptmx.Close()
	})
	return u
}

// keepOutput has a key that sends a signal throw nothing away. Else the kernel sends the signal and
// then drops what was written, with that which a program has written because of the signal.
func (u *user) keepOutput(t *testing.T) {
	t.Helper()
	fd := int(u.ptmx.file.Fd())
	mode, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	rig.Must(t, err)
	mode.Lflag |= unix.NOFLSH
	rig.Must(t, unix.IoctlSetTermios(fd, unix.TCSETS, mode))
	u.ptmx.heedDeadlines(t)
}

// sees reads the screen up to a text, and then up to the next.
func (u *user) sees(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		done := u.hurry(t, fmt.Sprintf("%q is not on the screen", text))
		var seen bytes.Buffer
		for !strings.HasSuffix(seen.String(), text) {
			b, err := u.screen.ReadByte()
			if err != nil {
				done()
				t.Fatalf("waiting for %q: %v, on the screen is %q", text, err, &seen)
			}
			seen.WriteByte(b)
		}
		done()
	}
}

func (u *user) types(t *testing.T, text string) {
	t.Helper()
	rig.Must(t, rig.Err(io.WriteString(u.ptmx, text)))
}

// answers sees a question, types an answer, and sees what comes of it.
func (u *user) answers(t *testing.T, text string, seen ...string) {
	t.Helper()
	u.sees(t, asks)
	u.enters(t, text, seen...)
}

// enters types a text, and sees what comes of it.
func (u *user) enters(t *testing.T, text string, seen ...string) {
	t.Helper()
	u.types(t, text)
	u.sees(t, seen...)
}

func (u *user) ends(t *testing.T, want int) {
	t.Helper()
	u.exits(t)
	rig.Is(t, u.ProcessState.ExitCode(), want, "exit code")
}

// exits waits for the end of the program and returns what is on the screen then.
func (u *user) exits(t *testing.T) (screen string) {
	t.Helper()
	defer u.hurry(t, fmt.Sprintf("%q does not end", u.Args))()
	// The rest is read, since a full terminal could keep the program from ending.
	var rest bytes.Buffer
	_, _ = rest.ReadFrom(u.screen) // EIO when the program has ended
	_ = u.Wait()                   // the state says how
	return rest.String()
}

// hurry has the terminal closed, and the program killed, if something takes too long. Others may
// have the terminal, too, and fill the screen for ever.
func (u *user) hurry(t *testing.T, what string) (done func()) {
	t.Helper()
	late := time.AfterFunc(patience, func() {
		t.Error(what)
		_ = errors.Join(u.Process.Kill(), u.ptmx.Close()) // either may be over
	})
	return func() { late.Stop() }
}

func TestExecTerminal(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"embedded": {"exec", "-t"}, "url": {"exec", "-t", "--url", startAgent(t, "none", "--listen", "ws://127.0.0.1:0").line(t)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const script = `stty size; echo $TERM; tty >/dev/null && echo terminal
				while read -r line; do echo "got $line"; done; echo end; exit 7`
			u := atTerminal(t, &pty.Winsize{Rows: 33, Cols: 101}, append(args, "--", "bash", "-c", script)...)
			u.sees(t, "33 101\r\nvt220\r\nterminal\r\n")

			// The echo is that of the command's terminal, once.
			u.enters(t, "one\r", "one\r\ngot one\r\n")

			u.enters(t, "\x04", "end\r\n")
			u.ends(t, 7)
		})
	}
}

// TestInterrupt: control-C reaches the command, once, and the agent waits for what the command makes
// of it: with a terminal of its own it is for the command alone, else a signal that is passed on.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"exec", "-t"}, {"exec"}, {"sandbox"}, {"sandbox", "-t"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			u := atTerminal(t, wide, append(args, "--", "sh", "-c",
				"stty noflsh 2>/dev/null; trap 'n=$((n+1))' INT; echo ready; while [ ! $n ]; do sleep 0.05; done; sleep 0.3; echo caught $n; exit 5")...)
			u.sees(t, "ready\r\n")
			u.enters(t, "\x03", "caught 1\r\n")
			u.ends(t, 5)
		})
	}
}

// TestExecRestoresTerminal: agent exec restores the terminal, whether the command ends well, is
// killed, or was never started.
func TestExecRestoresTerminal(t *testing.T) {
	t.Parallel()
	for name, command := range map[string]string{
		"ends": "true", "fails": "/no/such/command", "is killed": "sh -c 'kill -9 $$'",
		"is terminated": "sh -c 'kill -TERM $PPID; sleep 300' 2>/dev/null",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			script := `before=$(stty -g); "$0" exec -t -- ` + command + `; test "$before" = "$(stty -g)" && echo restored`
			u := at(t, exec.Command("bash", "-c", script, rig.Agent(t)), &pty.Winsize{Rows: 24, Cols: 200})
			has(t, u.exits(t)+"\n", "restored\r\n\n")
			u.ends(t, 0)
		})
	}
}

// TestCopyToTerminal: a tar archive is not written to a terminal.
func TestCopyToTerminal(t *testing.T) {
	t.Parallel()
	url := startAgent(t, "none", "--listen", "ws://127.0.0.1:0").line(t)
	u := atTerminal(t, &pty.Winsize{Rows: 24, Cols: 200}, "cp", "--url", url, ":/etc/passwd", "-")
	u.sees(t, "agent: a tar archive cannot be written to a terminal; to print a file use agent cat\r\n")
	u.ends(t, 1)
}

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
	u.enters(t, "echo reads $((1+1)); read x; echo got $x; jobs\r", "reads 2\r\n")
	open()
	u.sees(t, "done\r\n")
	u.enters(t, "for the shell\r", "got for the shell\r\n", "Running")
	u.enters(t, "echo one $((1+1))\r", "one 2\r\n")
	// In the foreground it reads.
	u.enters(t, "fg %1\r", "exec -- sh -c")
	u.enters(t, "for the command\r", "for the command\r\nfor the command\r\n")
	u.types(t, "\x04")
	u.types(t, "exit 9\r")
	u.ends(t, 9)
}

// TestExecAfterItsCommand: exec says why it stays after its command has ended, and a signal ends it
// then, since no command is there to get the signal.
func TestExecAfterItsCommand(t *testing.T) {
	t.Parallel()
	url := startAgent(t, "none", "--listen", "ws://127.0.0.1:0").line(t)
	for _, tt := range []struct {
		args   []string
		signal syscall.Signal // 0: Ctrl-C
	}{{[]string{"--local"}, syscall.SIGTERM}, {[]string{"--local", "-t"}, 0}, {[]string{"--url", url}, syscall.SIGHUP}, {[]string{"--url", url}, 0}, {[]string{"--url", url, "-t"}, syscall.SIGQUIT}} {
		t.Run(fmt.Sprint(tt.args[0], len(tt.args), tt.signal), func(t *testing.T) {
			t.Parallel()
			u := atTerminal(t, wide, append(append([]string{"exec"}, tt.args...), "--", "sh", "-c", "trap '' HUP; while echo tick; do sleep 0.2; done & exit 3")...)
			u.sees(t, "agent: the command has ended with exit code 3", "Ctrl-C")
			if tt.signal == 0 {
				u.types(t, "\x03")
				tt.signal = syscall.SIGINT
			} else {
				rig.Must(t, u.Process.Signal(tt.signal))
			}
			u.ends(t, 128+int(tt.signal))
		})
	}
}

// TestExecStopped: when a shell continues exec, the terminal is raw again.
func TestExecStopped(t *testing.T) {
	t.Parallel()
	for _, signal := range []string{"STOP", "TSTP"} {
		u := inShell(t)
		path, open := gate(t)
		u.enters(t, "$AGENT exec --local -t -- sh -c 'stty -echo; echo ready; read go <"+path+"; kill -"+signal+" $PPID; exec tr a-z A-Z'\r", "ready\r\n")
		open()
		u.sees(t, "Stopped", "A-Z'\r\n")
		u.enters(t, "fg; echo code $?\r", "A-Z'\r\n")
		rig.Until(t, "the terminal is raw", func() bool {
			mode, err := unix.IoctlGetTermios(int(u.ptmx.file.Fd()), unix.TCGETS)
			return err == nil && mode.Lflag&(unix.ICANON|unix.ECHO) == 0 && mode.Oflag&unix.OPOST == 0
		})
		u.ptmx.heedDeadlines(t)
		u.enters(t, "one\x04\x04", "ONEcode 0")
		u.types(t, "exit 9\r")
		u.ends(t, 9)
	}
}

// TestBackspace: a terminal of the command's own removes whole characters, as the user's does.
func TestBackspace(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"exec", "-t"}, {"sandbox", "-t"}} {
		u := at(t, exec.Command("sh", append([]string{"-c", `stty iutf8; exec "$@"`, "sh", rig.Agent(t)}, append(args, "--", "sh", "-c",
			`echo ready; read -r x; printf %s "$x" | od -An -tx1`)...)...), wide)
		u.sees(t, "ready\r\n")
		u.enters(t, "aé\x7fb\r", " 61 62\r\n")
		u.ends(t, 0)
	}
}
