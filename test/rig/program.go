package rig

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A Program is a started program.
type Program struct {
	*exec.Cmd
	Printed *Transcript   // the text of both outputs
	ended   chan struct{} // closed when the program has ended

	stdout *Transcript
	taken  int // bytes of stdout that Line has returned
}

// Start starts a program. At the end of the test it is killed if it still runs, and its output is
// logged if the test has failed. If cmd has a writer for an output, the writer gets the output as
// well. If cmd has a file, only the file gets the output.
func Start(t T, cmd *exec.Cmd) *Program {
	t.Helper()
	p := &Program{Cmd: Leash(cmd), Printed: &Transcript{}, ended: make(chan struct{}), stdout: &Transcript{}}
	cmd.Stdout = also(cmd.Stdout, p.Printed, p.stdout)
	cmd.Stderr = also(cmd.Stderr, p.Printed)
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v", err)
	}
	go func() {
		defer close(p.ended)
		_ = cmd.Wait() // ProcessState has the result
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		select {
		case <-p.ended:
		case <-time.After(Patience):
			t.Errorf("%s is killed, and others have its output", strings.Join(cmd.Args, " "))
		}
		if t.Failed() {
			t.Logf("%s:\n%s", strings.Join(cmd.Args, " "), p.Printed)
		}
	})
	return p
}

// also returns a writer to w and to the others, unless w is a file.
func also(w io.Writer, others ...io.Writer) io.Writer {
	switch w.(type) {
	case nil:
		return io.MultiWriter(others...)
	case *os.File:
		return w
	}
	return io.MultiWriter(append(others, w)...)
}

// Command returns a command that runs to its end, not yet started. A command that takes too long is
// killed, and fails the test.
func Command(t T, name string, args ...string) *exec.Cmd {
	t.Helper()
	// The command may wait for several events, each of which may take long.
	ctx, cancel := context.WithTimeout(t.Context(), 2*Patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Cancel = func() error {
		if t.Context().Err() == nil {
			t.Errorf("%s: it does not end", strings.Join(cmd.Args, " "))
		}
		return cmd.Process.Kill()
	}
	cmd.WaitDelay = Patience // for processes that it has started and that hold its output open
	return cmd
}

// Leash makes a program end with this process, even if this process ends before its tests do.
func Leash(cmd *exec.Cmd) *exec.Cmd {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	return cmd
}

// Until waits until happened returns true. It fails the test if the program ends before.
func (p *Program) Until(t T, what string, happened func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	late := time.After(Patience)
	for !happened() {
		select {
		case <-tick.C:
		case <-p.ended:
			if happened() { // the program may have caused it just before its end
				return
			}
			t.Fatalf("waiting until %s: %v\n%s", what, p.ProcessState, p.Printed)
		case <-late:
			t.Fatalf("waiting until %s: it takes too long\n%s", what, p.Printed)
		}
	}
}

// Says waits until the program has printed a text n times.
func (p *Program) Says(t T, text string, n int) {
	t.Helper()
	p.Until(t, fmt.Sprintf("it says %q", text), func() bool { return strings.Count(p.Printed.String(), text) >= n })
}

// Line waits for the next line of the program's standard output.
func (p *Program) Line(t T) string {
	t.Helper()
	var line string
	p.Until(t, "it prints a line", func() (whole bool) {
		line, _, whole = strings.Cut(p.stdout.String()[p.taken:], "\n")
		return whole
	})
	p.taken += len(line) + 1
	return line
}

// Exit waits for the program's end and returns its exit code, -1 after a signal.
func (p *Program) Exit(t T) int {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(Patience):
		_ = p.Process.Signal(syscall.SIGQUIT) // a Go program then prints its goroutines
		select {
		case <-p.ended:
		case <-time.After(time.Second):
		}
		t.Fatalf("it does not end\n%s", p.Printed)
	}
	return p.ProcessState.ExitCode()
}

// Stop sends SIGTERM, waits for the program's end and returns its exit code.
func (p *Program) Stop(t T) int {
	t.Helper()
	_ = p.Process.Signal(syscall.SIGTERM) // it may have ended; Exit returns the code
	return p.Exit(t)
}

// Terminate does what Stop does, and fails the test if the exit code is not 0.
func (p *Program) Terminate(t T) {
	t.Helper()
	if code := p.Stop(t); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
}

// Kill kills the program, which must be running, and waits for its end.
func (p *Program) Kill(t T) {
	t.Helper()
	if err := p.Process.Kill(); err != nil {
		t.Fatalf("%v", err)
	}
	p.Exit(t)
}

// Gone reports whether the program has ended.
func (p *Program) Gone() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// A Transcript keeps the output of programs. Its zero value is empty.
type Transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write adds to the transcript. It never returns an error.
func (t *Transcript) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(p)
}

// String returns the text so far.
func (t *Transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}
