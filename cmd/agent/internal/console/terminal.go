package console

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/cmd/internal/program"
)

// Terminal is the terminal of the user and of a command that runs there, too. Its methods may be
// called at once, also on nil, at which nobody answers.
type Terminal struct {
	file  *os.File
	tty   *program.Terminal
	pause time.Duration // see Pause
	lend  func() func() // see LendBy; nil: nobody lends it
	turn  chan struct{} // has a value while nobody asks
	over  context.Context
	close func() error
}

// New returns a terminal, which owns the file.
func NewTerminal(file *os.File) *Terminal {
	t := &Terminal{file: file, tty: program.NewTerminal(file), pause: QuestionPause, turn: make(chan struct{}, 1)}
	over, end := context.WithCancel(context.Background())
	t.over, t.close = over, sync.OnceValue(func() error {
		end()
		<-t.turn
		return file.Close()
	})
	t.turn <- struct{}{}
	return t
}

// OpenTerminal opens the terminal of this program; nil where there is none.
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

// LendBy names who has the terminal while nobody asks. A question begins with lend, which returns
// once the terminal edits lines and nobody else reads or writes it, and ends with what lend returns.
func (t *Terminal) LendBy(lend func() (back func())) {
	if t != nil {
		<-t.turn
		t.lend = lend
		t.turn <- struct{}{}
	}
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
	back, err := t.front(ctx)
	if err != nil {
		return err
	}
	defer back()
	if t.lend != nil {
		defer t.lend()()
	}
	columns, last := Columns(t.tty), len(lines)-1
	if _, err := io.WriteString(t.file, QuestionHeading(lines[:last], columns)); err != nil {
		return err
	}
	select {
	case <-time.After(t.pause):
	case <-ctx.Done():
		_, _ = io.WriteString(t.file, QuestionWithdrawn) // the error says more
		return context.Cause(ctx)
	}
	for text := QuestionText(lines[last:], MaxQuestion); ; {
		t.forget()
		if _, err := io.WriteString(t.file, text); err != nil {
			return err
		}
		line, err := t.line(ctx)
		if err != nil {
			_, _ = io.WriteString(t.file, QuestionWithdrawn) // the error says more
			return err
		}
		// What was pasted is none.
		if (line == QuestionInterrupted || !t.tty.Ready()) && take(line) {
			return nil
		}
	}
}

// QuestionPause is how long a question is on the screen before it takes answers: what is typed meanwhile
// was typed by somebody who has not read it.
const QuestionPause = 500 * time.Millisecond

// front waits until this program is in the foreground of the terminal: only who is there can read.
// If a part of the command is there, such as a job of its shell, it lends the terminal, and gets it
// back by back. It is not taken from anybody else, such as the shell of the user.
func (t *Terminal) front(ctx context.Context) (back func(), err error) {
	fd := -1
	raw, err := t.file.SyscallConn()
	if err != nil {
		return nil, err
	}
	_ = raw.Control(func(descriptor uintptr) { fd = int(descriptor) }) // the file is open: who asks has the turn
	look := time.NewTicker(program.Background)
	defer look.Stop()
	for told := false; !t.tty.InForeground(); told = true {
		group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		if err == nil && isOurs(group) {
			signal.Ignore(syscall.SIGTTOU) // who changes the foreground from behind is stopped
			_ = unix.IoctlSetPointerInt(fd, unix.TIOCSPGRP, unix.Getpgrp())
			return func() {
				_ = unix.IoctlSetPointerInt(fd, unix.TIOCSPGRP, group) // a group that has ended needs no terminal
				signal.Reset(syscall.SIGTTOU)
			}, nil
		}
		if !told {
			_, _ = io.WriteString(t.file, QuestionWaits)
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return func() {}, nil
}

// QuestionWaits tells a user whose shell has the terminal that there is a question.
const QuestionWaits = "\r\nagent: a question waits until this is in the foreground\r\n"

// QuestionWithdrawn tells the user of a question that it needs no answer any more.
const QuestionWithdrawn = "\r\nagent: no answer is needed any more\r\n"

// calm ends what a command may have begun to tell a terminal, so that the question is seen, whole
// and alone: the sequence that it is in, a picture that it holds back, colours that hide, letters
// that are lines, margins in which all but one row scrolls away, ends of lines that overwrite each
// other; and what is on the screen from here on.
const calm = "\x18\x1b\\" + "\x1b[?2026l" + colours + "\x1b[m\x1b(B\x0f" + "\x1b7\x1b[?69l\x1b[r\x1b8" + "\x1b[4l\x1b[?7h\x1b[?25h" + "\r\x1b[J"

// colours has the terminal forget the colours that it was told: those by number, of letters, of the
// ground and of the cursor, as xterm and those after it do, and with ]R the console of Linux.
// Letters with the colour of their ground would be a question that nobody sees, and answers all the
// same, below one of the command that is coloured otherwise.
const colours = "\x1b]104\x1b\\" + "\x1b]110\x1b\\" + "\x1b]111\x1b\\" + "\x1b]112\x1b\\" + "\x1b]R\x1b\\"

// QuestionHeading is how the lines before the last one of a question are written.
func QuestionHeading(lines []string, columns int) string {
	text := "\r"
	if term := os.Getenv("TERM"); term != "" && term != "dumb" {
		text = calm
	}
	for _, line := range lines {
		text += QuestionText([]string{line}, columns) + "\r\n"
	}
	return text
}

// Columns are those of a terminal, or what most have.
func Columns(t *program.Terminal) int {
	if _, columns, ok := t.Size(); ok {
		return int(columns)
	}
	return 80
}

// MaxQuestion is for the line with the choices, in which nothing is that is asked about: the terminal
// may go on with it at the beginning of a row.
const MaxQuestion = 1 << 20

const (
	name      = "agent: "
	continued = "agent:   | " // begins a row that goes on with a line
	minRow    = 8             // letters of a row
)

// QuestionText is how lines of a question are written, each of them harmless for a terminal. The user types
// behind the last one. No row is begun by what is asked about: it could look like another question.
func QuestionText(lines []string, columns int) string {
	var b strings.Builder
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(name)
		width := max(columns-1, len(continued)+minRow)
		left := width - len(name)
		for _, r := range program.Plain(line) {
			takes := 1
			if r > unicode.MaxASCII {
				takes = 2 // at most
			}
			if left -= takes; left < 0 {
				b.WriteString("\r\n" + continued)
				left = width - len(continued) - takes
			}
			b.WriteRune(r)
		}
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

// maxAnswer bounds an answer, in bytes.
const maxAnswer = 256

// line reads one line, and nothing behind it, which may be for the command. The command may have
// switched the terminal so that each letter comes by itself: also then only Enter ends a line.
func (t *Terminal) line(ctx context.Context) (string, error) {
	text := make([]byte, 0, maxAnswer)
	for len(text) < maxAnswer && !bytes.ContainsAny(text, "\r\n"+QuestionInterrupted) {
		if err := t.tty.Await(ctx); err != nil {
			return "", err
		}
		n, err := t.file.Read(text[len(text) : len(text)+1])
		if err != nil || n == 0 {
			return "", ErrNobody
		}
		text = text[:len(text)+n]
	}
	if bytes.Contains(text, []byte(QuestionInterrupted)) {
		return QuestionInterrupted, nil
	}
	return string(text), nil
}

// Close ends what waits for an answer. It may be called often.
func (t *Terminal) Close() error {
	if t == nil {
		return nil
	}
	return t.close()
}
