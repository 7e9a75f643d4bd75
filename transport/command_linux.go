package transport

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxStderrLine = 8 << 10 // bytes of one line that are passed on; client.md 1.2
	defaultGrace  = 2 * time.Second

	// lateOutput is how long Read waits for more output once the program is gone.
	// By then the program's output is in the pipe, and only a descendant that left
	// the group can still hold the pipe open.
	lateOutput = 100 * time.Millisecond
)

// CommandConfig configures the program to start. Only Argv has no usable zero
// value.
type CommandConfig struct {
	Argv []string // Argv[0] is looked up in PATH
	Env  []string // KEY=VALUE; nil inherits the environment of this process
	Dir  string   // "" is the working directory of this process

	// Stderr is called with each line the program writes to its standard
	// error, without its ending and cut to 8 KiB, by one goroutine. nil
	// discards them.
	Stderr func(line string)

	// Grace is how long Close waits for the program to end, once after its
	// standard input was closed and again after SIGTERM; 0 is 2 s.
	Grace time.Duration
}

// Command is a [rpc.Conn] to a program that speaks on its standard input and
// output, in a process group of its own. When the program ends, by itself or
// through Close, the rest of its group is killed.
type Command struct {
	*Lines
	cmd     *exec.Cmd
	grace   time.Duration
	running sync.WaitGroup // the two goroutines
	exited  chan struct{}  // closed when the program has ended

	mu   sync.Mutex // protects gone
	gone bool       // the program was reaped: its group number may now belong to another group
}

// StartCommand starts a program and connects to it. The caller closes the
// connection.
func StartCommand(config CommandConfig) (*Command, error) {
	if len(config.Argv) == 0 {
		return nil, errors.New("argv is empty")
	}
	pipes := make([]*os.File, 0, 6)
	for range 3 {
		r, w, err := os.Pipe()
		if err != nil {
			closeFiles(pipes)
			return nil, fmt.Errorf("opening pipes for %s: %w", config.Argv[0], err)
		}
		pipes = append(pipes, r, w)
	}
	stdin, ourIn := pipes[0], pipes[1]
	ourOut, stdout := pipes[2], pipes[3]
	ourErr, stderr := pipes[4], pipes[5]

	cmd := exec.Command(config.Argv[0], config.Argv[1:]...)
	cmd.Env, cmd.Dir = config.Env, config.Dir
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		closeFiles(pipes)
		return nil, fmt.Errorf("starting %s: %w", config.Argv[0], err)
	}
	closeFiles([]*os.File{stdin, stdout, stderr})

	c := &Command{cmd: cmd, grace: config.Grace, exited: make(chan struct{})}
	if c.grace <= 0 {
		c.grace = defaultGrace
	}
	c.Lines = newLines(&output{ourOut}, ourIn, "command "+config.Argv[0], nil)
	c.running.Go(func() { c.wait(ourOut, ourErr) })
	c.running.Go(func() {
		passLines(&output{ourErr}, config.Stderr)
		ourErr.Close()
	})
	return c, nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// wait reaps the program when it has ended. Before that it kills the rest of the
// group, because until the program is reaped no other group can have its number.
func (c *Command) wait(stdout, stderr *os.File) {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, c.cmd.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	c.signal(syscall.SIGKILL)
	c.mu.Lock()
	c.gone = true
	c.mu.Unlock()
	_ = c.cmd.Wait() // the end of the connection says as much as the exit code
	close(c.exited)
	// These fail only on a closed pipe, which has no reader.
	_ = stdout.SetReadDeadline(time.Now())
	_ = stderr.SetReadDeadline(time.Now())
}

// signal sends a signal to the whole group, unless the program was reaped.
func (c *Command) signal(s syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.gone {
		_ = syscall.Kill(-c.cmd.Process.Pid, s) // the zombie keeps the group, so it exists
	}
}

// Close ends the connection at once and the program soon: it closes its
// standard input, after Grace sends SIGTERM to the group, after Grace again
// SIGKILL, and returns when the program is gone.
func (c *Command) Close() error {
	err := c.Lines.Close()
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if c.exitsWithin(c.grace) {
			break
		}
		c.signal(s)
	}
	c.running.Wait()
	return err
}

func (c *Command) exitsWithin(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c.exited:
		return true
	case <-timer.C:
		return false
	}
}

// output is the reading end of a pipe from the program. When the program is gone,
// wait sets a deadline; from then on Read returns the rest of the pipe, waits
// lateOutput for more, and then returns io.EOF.
type output struct{ *os.File }

func (o *output) Read(p []byte) (int, error) {
	n, err := o.File.Read(p)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return n, err
	}
	if err := o.SetReadDeadline(time.Now().Add(lateOutput)); err != nil {
		return 0, err
	}
	n, err = o.File.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return n, io.EOF
	}
	return n, err
}

// passLines calls pass for every line of r until it ends.
func passLines(r io.Reader, pass func(line string)) {
	lines := bufio.NewReaderSize(r, maxStderrLine)
	for rest := false; ; {
		line, err := lines.ReadSlice('\n')
		if pass != nil && !rest && len(line) > 0 {
			pass(string(trimEnding(line)))
		}
		rest = errors.Is(err, bufio.ErrBufferFull)
		if err != nil && !rest {
			return
		}
	}
}
