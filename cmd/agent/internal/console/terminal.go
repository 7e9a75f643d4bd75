package console

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/cmd/internal/program"
)

// Terminal is the user's terminal, at which a command runs too. Its methods may be called
// concurrently. On nil, Ask fails and the other methods do nothing.
type Terminal struct {
	file  *os.File
	tty   *program.Terminal
	pause time.Duration // see questionPause
	lend  func() func() // see LendBy; nil: a question need not borrow the terminal
	turn  chan struct{} // has a value while no question is asked
	over  context.Context
	close func() error
}

// NewTerminal returns a terminal, which owns the file.
func NewTerminal(file *os.File) *Terminal {
	t := &Terminal{file: file, tty: program.NewTerminal(file), pause: questionPause, turn: make(chan struct{}, 1)}
	over, end := context.WithCancel(context.Background())
	t.over, t.close = over, sync.OnceValue(func() error {
		end()
		<-t.turn
		return file.Close()
	})
	t.turn <- struct{}{}
	return t
}

// OpenTerminal opens the terminal of this program. It returns nil if there is no terminal.
func OpenTerminal() *Terminal {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	if program.NewTerminal(tty) == nil {
		_ = tty.Close() // nothing was written
		return nil
	}
	return NewTerminal(tty)
}

// LendBy sets the function by which a question borrows the terminal. lend returns when the terminal
// edits lines and nothing else reads or writes it; back returns the terminal after the question.
func (t *Terminal) LendBy(lend func() (back func())) {
	if t != nil {
		<-t.turn
		t.lend = lend
		t.turn <- struct{}{}
	}
}

// Ask is an [Ask].
func (t *Terminal) Ask(ctx context.Context, lines []string, take func(line string) bool) error {
	if t == nil {
		return errNobody
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(t.over, func() { cancel(errNobody) })()
	select {
	case <-t.turn:
		defer func() { t.turn <- struct{}{} }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	back, err := t.front(ctx)
	if err != nil {
		return err
	}
	defer back()
	if t.lend != nil {
		defer t.lend()()
	}
	columns, last := columnsOf(t.tty), len(lines)-1
	if _, err := io.WriteString(t.file, questionHeading(lines[:last], columns)); err != nil {
		return err
	}
	select {
	case <-time.After(t.pause):
	case <-ctx.Done():
		_, _ = io.WriteString(t.file, questionWithdrawn) // the error says more
		return context.Cause(ctx)
	}
	for text := questionText(lines[last:], maxQuestion); ; {
		t.forget()
		if _, err := io.WriteString(t.file, text); err != nil {
			return err
		}
		line, err := t.line(ctx)
		if err != nil {
			_, _ = io.WriteString(t.file, questionWithdrawn) // the error says more
			return err
		}
		// A line with more input behind it was pasted, and is no answer.
		if (line == Interrupted || !t.tty.Ready()) && take(line) {
			return nil
		}
	}
}

// front waits until this program is in the foreground of the terminal, because only the foreground
// can read. If a process group of the command has the foreground, such as a job of its shell, front
// takes the foreground from it, and back returns it. front takes the foreground from no other
// process, such as the user's shell.
func (t *Terminal) front(ctx context.Context) (back func(), err error) {
	fd := -1
	raw, err := t.file.SyscallConn()
	if err != nil {
		return nil, err
	}
	_ = raw.Control(func(descriptor uintptr) { fd = int(descriptor) }) // it cannot fail: the file stays open while we have the turn
	look := time.NewTicker(program.Background)
	defer look.Stop()
	for told := false; !t.tty.InForeground(); told = true {
		group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		if err == nil && isOurs(group) {
			signal.Ignore(syscall.SIGTTOU) // the kernel sends it to a background process that changes the foreground
			_ = unix.IoctlSetPointerInt(fd, unix.TIOCSPGRP, unix.Getpgrp())
			return func() {
				_ = unix.IoctlSetPointerInt(fd, unix.TIOCSPGRP, group) // a group that has ended needs no terminal
				signal.Reset(syscall.SIGTTOU)
			}, nil
		}
		if !told {
			_, _ = io.WriteString(t.file, questionWaits)
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return func() {}, nil
}

// forget discards input from before a question. The command can see that there is unread input, and
// could otherwise time a question so that this input answers it.
func (t *Terminal) forget() {
	if raw, err := t.file.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.IoctlSetInt(int(fd), unix.TCFLSH, unix.TCIFLUSH) }) // TCFLSH does not fail on a terminal
	}
}

// line reads one line and no input after it, because later input may be for the command. Enter,
// Ctrl-C or maxAnswer bytes end the line, even if the command has switched line mode off.
func (t *Terminal) line(ctx context.Context) (string, error) {
	text := make([]byte, 0, maxAnswer)
	for len(text) < maxAnswer && !bytes.ContainsAny(text, "\r\n"+Interrupted) {
		if err := t.tty.Await(ctx); err != nil {
			return "", err
		}
		n, err := t.file.Read(text[len(text) : len(text)+1])
		if err != nil || n == 0 {
			return "", errNobody
		}
		text = text[:len(text)+n]
	}
	if bytes.Contains(text, []byte(Interrupted)) {
		return Interrupted, nil
	}
	return string(text), nil
}

// Close ends a question that waits for an answer, and closes the file. It may be called more than
// once.
func (t *Terminal) Close() error {
	if t == nil {
		return nil
	}
	return t.close()
}
