package asking

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/cmd/internal/program"
)

// Terminal is the terminal of the user and of a command that runs there, too. Its methods may be
// called at once, also on nil, at which nobody answers.
type Terminal struct {
	file  *os.File
	tty   *program.Terminal
	ours  bool          // this program was in the foreground in the beginning
	turn  chan struct{} // has a value while nobody asks
	over  context.Context
	close context.CancelCauseFunc
}

// New returns a terminal, which owns the file.
func New(file *os.File) *Terminal {
	t := &Terminal{file: file, tty: program.NewTerminal(file), turn: make(chan struct{}, 1)}
	t.ours = t.tty.InForeground()
	t.over, t.close = context.WithCancelCause(context.Background())
	t.turn <- struct{}{}
	return t
}

// Open opens the terminal of this program; nil where there is none.
func Open() *Terminal {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	if program.NewTerminal(tty) == nil {
		_ = tty.Close() // nothing was written
		return nil
	}
	return New(tty)
}

// ErrNobody is why a question was not answered at a terminal that there is not, or is no more.
var ErrNobody = errors.New("nobody is at a terminal")

// Ask is an [Ask].
func (t *Terminal) Ask(ctx context.Context, lines []string, take func(line string) bool) error {
	if t == nil {
		return ErrNobody
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(t.over, func() { cancel(ErrNobody) })()
	select {
	case <-t.turn:
		defer func() { t.turn <- struct{}{} }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	defer t.front()()
	for text := Text(lines); ; text = Text(lines[len(lines)-1:]) {
		t.forget()
		if _, err := io.WriteString(t.file, text); err != nil {
			return err
		}
		line, err := t.line(ctx)
		if err != nil {
			_, _ = io.WriteString(t.file, Withdrawn) // the error says more
			return err
		}
		if take(line) {
			return nil
		}
	}
}

// front brings this program to the foreground of the terminal if a part of the command is there,
// such as a job of its shell: only who is there can read. Back makes that undone.
func (t *Terminal) front() (back func()) {
	fd := -1
	raw, err := t.file.SyscallConn()
	if err != nil || !t.ours || t.tty.InForeground() {
		return func() {}
	}
	_ = raw.Control(func(descriptor uintptr) { fd = int(descriptor) }) // the file is open: who asks has the turn
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	if err != nil {
		return func() {}
	}
	signal.Ignore(syscall.SIGTTOU) // who changes the foreground from behind is stopped
	_ = unix.IoctlSetPointerInt(fd, unix.TIOCSPGRP, unix.Getpgrp())
	return func() {
		_ = unix.IoctlSetPointerInt(fd, unix.TIOCSPGRP, group) // a group that has ended needs no terminal
		signal.Reset(syscall.SIGTTOU)
	}
}

// Withdrawn tells the user of a question that it needs no answer any more.
const Withdrawn = "\r\nagent: no answer is needed any more\r\n"

// calm ends what a command may have begun to tell a terminal, so that the question is seen: the
// sequence that it is in, and colours that hide.
const calm = "\x18\x1b\\\x1b[m"

// Text is how the lines of a question are written, each of them harmless for a terminal. The user
// types behind the last one.
func Text(lines []string) string {
	var b strings.Builder
	if term := os.Getenv("TERM"); term != "" && term != "dumb" {
		b.WriteString(calm)
	}
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString("agent: " + program.Plain(line))
	}
	return b.String()
}

// forget drops what was typed before a question: the command sees that something was typed for it,
// and could have its question answered by that.
func (t *Terminal) forget() {
	if raw, err := t.file.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.IoctlSetInt(int(fd), unix.TCFLSH, unix.TCIFLUSH) }) // it fails on no terminal
	}
}

// maxLine bounds an answer, in bytes.
const maxLine = 256

// line reads one line, and nothing behind it, which may be for the command. The command may have
// switched the terminal so that each letter comes by itself: also then only Enter ends a line.
func (t *Terminal) line(ctx context.Context) (string, error) {
	text := make([]byte, 0, maxLine)
	for len(text) < maxLine && !bytes.ContainsAny(text, "\r\n"+Interrupted) {
		if err := t.tty.Await(ctx); err != nil {
			return "", err
		}
		n, err := t.file.Read(text[len(text) : len(text)+1])
		if err != nil || n == 0 {
			return "", ErrNobody
		}
		text = text[:len(text)+n]
	}
	if bytes.Contains(text, []byte(Interrupted)) {
		return Interrupted, nil
	}
	return string(text), nil
}

// Close ends what waits for an answer. It may be called once.
func (t *Terminal) Close() error {
	if t == nil {
		return nil
	}
	t.close(ErrNobody)
	<-t.turn
	return t.file.Close()
}
