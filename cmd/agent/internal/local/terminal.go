package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/sandbox/confine"
	"github.com/execagent/execagent/procs"
)

// ownTerminal connects the command's own terminal with the user's terminal: it copies the user's
// input and size to the command's terminal, and output to standard output.
type ownTerminal struct {
	sys     program.System
	process *procs.Process
	exited  chan int   // gets the exit code
	failed  chan error // gets the first error of writing output

	mu   sync.Mutex        // its holder uses the user's terminal: the reader, the writer, or a question
	user *program.Terminal // nil: standard input is no terminal
}

// runAtOwnTerminal runs the program at its own terminal. The exit code and the error are as for
// [confine.Held.Run]. After the end of the program, it ends all questions and kills the processes
// that the program has left behind.
func (c *Command) runAtOwnTerminal(held *confine.Held, run procs.Program) (code int, err error) {
	t := &ownTerminal{sys: c.Sys, exited: make(chan int, 1), failed: make(chan error, 1), user: program.NewTerminal(c.Sys.Stdin)}
	signals := make(chan os.Signal, 8)
	program.Catch(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH)
	defer signal.Stop(signals)
	spec := procs.Spec{Argv: run.Argv, Arg0: run.Arg0, Env: run.Env, Dir: run.Dir, TTY: true, Size: t.size(), Sink: t.take}
	if !held.Unconfined() {
		spec.Stage = held.ShellStage
	}
	// A question may be about the first program of the command, so the terminal must be ready to be
	// lent before the start.
	if err := t.user.Raw(); err != nil {
		return 0, err
	}
	defer t.user.Restore()
	c.terminal.LendBy(t.lend)
	if t.process, err = procs.Start(spec); err != nil {
		if held.Unconfined() {
			code = confine.ShellCode(err)
		}
		return code, err
	}
	defer func() {
		if err := t.process.Close(); err != nil {
			program.Complain(c.Sys.Stderr, err) // the command has run, and its exit code stays
		}
	}()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	t.process.Begin()
	go t.passInput(ctx) // a read cannot be interrupted, so this may last until the program ends
	code, err = t.pass(signals)
	return code, errors.Join(err, c.terminal.Close())
}

// take is the [procs.Spec.Sink]. The command waits while the user reads slowly, or while a question
// is asked.
func (t *ownTerminal) take(ev procs.Event) {
	switch ev.Kind {
	case procs.Output:
		t.mu.Lock()
		_, err := t.sys.Stdout.Write(ev.Data)
		t.mu.Unlock()
		if err != nil {
			select {
			case t.failed <- err:
			default: // the first error is enough
			}
		}
	case procs.Exited:
		t.exited <- ev.ExitCode
	}
}

// pass passes signals on until the command has ended, or its output cannot be written.
func (t *ownTerminal) pass(signals <-chan os.Signal) (code int, err error) {
	for {
		select {
		case sig := <-signals:
			if sig == syscall.SIGWINCH {
				_ = t.process.Resize(t.size()) // a command that has just ended needs no size
				continue
			}
			t.process.Signal(sig.(syscall.Signal))
		case err := <-t.failed:
			if errors.Is(err, syscall.EPIPE) {
				return 128 + int(syscall.SIGPIPE), nil // without -t, SIGPIPE would have ended the command
			}
			return 0, fmt.Errorf("writing to standard output: %w", err)
		case code := <-t.exited:
			return code, nil
		}
	}
}

// size returns the size of the user's terminal, or zero if there is none.
func (t *ownTerminal) size() procs.Winsize {
	rows, cols, _ := t.sys.Size()
	return procs.Winsize{Rows: rows, Cols: cols}
}

// lend lends the user's terminal to a question, in line mode, see [console.Terminal.LendBy].
func (t *ownTerminal) lend() (back func()) {
	t.mu.Lock()
	t.user.Restore()
	return func() {
		_ = t.user.Raw() // it fails only if the terminal is gone
		t.mu.Unlock()
	}
}

const ctrlD = "\x04" // VEOF in termios(3)

// passInput passes standard input and its end on to the command.
func (t *ownTerminal) passInput(ctx context.Context) {
	input, last := make([]byte, 4<<10), byte('\n')
	for id := 0; ; id++ {
		n, err := t.read(ctx, input)
		if ctx.Err() != nil {
			return
		}
		data := input[:n]
		if n > 0 {
			last = input[n-1]
		}
		if err != nil {
			data = append(data, ctrlD...)
			if last != '\n' { // within a line, the first Ctrl-D only passes on the line so far
				data = append(data, ctrlD...)
			}
		}
		if _, gone := t.process.Write(ctx, strconv.Itoa(id), data); gone != nil || err != nil {
			return
		}
	}
}

// read reads standard input. At a terminal, a question may have read the input first; read then
// returns 0.
func (t *ownTerminal) read(ctx context.Context, input []byte) (n int, err error) {
	if t.user == nil {
		return t.sys.Stdin.Read(input)
	}
	if err := t.user.Await(ctx); err != nil {
		return 0, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.user.Ready() {
		return 0, nil
	}
	return t.sys.Stdin.Read(input)
}
