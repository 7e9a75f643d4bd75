package transport

import (
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "echo-lines" {
		echoLines()
		return
	}
	_ = flag.Set("test.parallel", "8") // most tests wait for others
	goleak.VerifyTestMain(m)
}

// echoLines is a program at the far end of a Command.
func echoLines() {
	c := Stdio(os.Stdin, os.Stdout, nil)
	line, err := c.Read()
	for ; err == nil; line, err = c.Read() {
		if c.Write(line) != nil {
			return
		}
	}
}

func startCommand(t testing.TB, config CommandConfig) *Command {
	t.Helper()
	c, err := StartCommand(config)
	rig.Must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func shell(t *testing.T, script string) []string {
	t.Helper()
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("needs sh")
	}
	return []string{sh, "-c", script}
}

func readLine(t *testing.T, c rpc.Conn) string {
	t.Helper()
	line, err := c.Read()
	rig.Must(t, err)
	return string(line)
}

// wantGone waits for the end of a process that need not be a child of ours.
func wantGone(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	rig.Must(t, err)
	defer unix.Close(fd)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience/time.Millisecond))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n != 1 {
			t.Errorf("process %d is still there: %v", pid, err)
		}
		return
	}
}

func TestCommandRoundTrip(t *testing.T) {
	t.Parallel()
	c := startCommand(t, CommandConfig{Argv: []string{os.Args[0], "echo-lines"}})
	for _, message := range []string{"{}", `{"é":1}`, strings.Repeat("x", 1<<20)} {
		go c.Write([]byte(message))
		wantRead(t, c, message)
	}
	rig.Check(t, c.Close(), c.Close())
	if _, err := c.Read(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("Read after Close: %v, want an error other than io.EOF", err)
	}
	rig.Is(t, c.String(), "command "+os.Args[0], "String")
}

func TestCommandSettings(t *testing.T) {
	t.Parallel()
	dir := rig.Value(filepath.EvalSymlinks(t.TempDir()))
	c := startCommand(t, CommandConfig{
		Argv: shell(t, `echo "$A"; pwd; ps -o pgid= -p $$ 2>/dev/null || cut -d" " -f5 /proc/$$/stat; echo $$; echo last`),
		Env:  []string{"A=é", "PATH=" + os.Getenv("PATH")},
		Dir:  dir,
	})
	var got []string
	for range 5 {
		got = append(got, strings.TrimSpace(readLine(t, c)))
	}
	pid := strconv.Itoa(c.cmd.Process.Pid)
	rig.Same(t, "environment, folder, group, process", []string{"é", dir, pid, pid, "last"}, got)
	rig.Is(t, rig.Err(c.Read()), io.EOF, "Read after the program's end")
}

func TestCommandStderr(t *testing.T) {
	t.Parallel()
	lines := make(chan string, 10)
	c := startCommand(t, CommandConfig{
		Argv:   shell(t, `printf 'one\r\n\n' >&2; head -c 20000 /dev/zero | tr '\0' x >&2; printf '\nthree' >&2`),
		Stderr: func(line string) { lines <- line },
	})
	rig.Is(t, rig.Err(c.Read()), io.EOF, "Read")
	c.Close()
	close(lines)
	var got []string
	for line := range lines {
		got = append(got, line)
	}
	rig.Same(t, "lines", []string{"one", "", strings.Repeat("x", maxStderrLine), "three"}, got)
}

func TestCommandErrors(t *testing.T) {
	t.Parallel()
	rig.Is(t, rig.Err(StartCommand(CommandConfig{})) == nil, false, "StartCommand without argv succeeded")
	err := rig.Err(StartCommand(CommandConfig{Argv: []string{"/nonexistent/program"}}))
	rig.Is(t, err, os.ErrNotExist, "StartCommand")
	rig.Says(t, err, "/nonexistent/program", "StartCommand")
}

// Programs that end sooner or later in the course of Close, and the signals by
// which they end.
func TestCommandClose(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, script string
		grace        time.Duration
		want         syscall.Signal // 0 for an exit by itself
	}{
		{"ends with its input", `echo ready; cat`, patience, 0},
		{"needs SIGTERM", `echo ready; exec sleep 1000`, 3 * time.Second, syscall.SIGTERM},
		{"needs SIGKILL", `trap "" TERM; echo ready; while :; do sleep 1000; done`, 50 * time.Millisecond, syscall.SIGKILL},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := startCommand(t, CommandConfig{Argv: shell(t, tt.script), Grace: tt.grace})
			readLine(t, c)
			c.Close()
			status := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
			rig.Is(t, max(status.Signal(), 0), tt.want, "ended by")
		})
	}
}

func TestCommandCloseUnblocks(t *testing.T) {
	t.Parallel()
	c := startCommand(t, CommandConfig{Argv: shell(t, `exec sleep 1000`), Grace: time.Millisecond})
	read, written := make(chan error, 1), make(chan error, 1)
	go func() { read <- rig.Err(c.Read()) }()
	go func() { written <- c.Write(make([]byte, 1<<20)) }()
	c.Close()
	rig.Is(t, <-read == nil, false, "Read succeeded")
	rig.Is(t, <-written == nil, false, "Write succeeded")
}

// When a program ends by itself, the processes that it leaves behind in its group
// are killed.
func TestCommandKillsTheGroup(t *testing.T) {
	t.Parallel()
	c := startCommand(t, CommandConfig{Argv: shell(t, `sleep 1000 & echo $!`)})
	pid := rig.Value(strconv.Atoi(readLine(t, c)))
	rig.Is(t, rig.Err(c.Read()), io.EOF, "Read")
	wantGone(t, pid)
}

// A descendant that left the group and holds the pipes open delays nothing,
// and what the program wrote before is read.
func TestCommandEndsDespiteOpenPipes(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Skip("needs setsid")
	}
	script := `setsid sh -c 'echo $$; exec sleep 1000' & read ready; echo last`
	c := startCommand(t, CommandConfig{Argv: shell(t, script)})
	pid := rig.Value(strconv.Atoi(readLine(t, c)))
	defer syscall.Kill(pid, syscall.SIGKILL)
	rig.Must(t, c.Write([]byte("{}")))
	<-c.exited
	wantRead(t, c, "last")
	rig.Is(t, rig.Err(c.Read()), io.EOF, "Read")
}
