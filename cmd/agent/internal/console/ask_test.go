package console

import (
	"context"
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/test/rig"
)

// asks returns a console whose user can be asked, what is typed for its command, and the side of
// the user.
func asks(t *testing.T) (c *Console, typed <-chan []byte, ptmx *os.File) {
	t.Helper()
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		ptmx.Close()
		tty.Close()
	})
	c = &Console{
		sys: program.System{Stdin: tty, Stdout: tty, Stderr: tty}, stdin: program.NewTerminal(tty), tty: tty,
		ctx: t.Context(), asking: t.Context(), ready: make(chan struct{}), screen: newLock(), typing: newLock(),
	}
	c.at = c.stdin
	input := make(chan []byte, 16)
	c.typist = &typist{Console: c, typed: input}
	close(c.ready)
	rig.Must(t, c.stdin.Raw())
	return c, input, ptmx
}

// TestTypedOn: who types on while a question appears, such as a password or the answer to another
// one, types for the command.
func TestTypedOn(t *testing.T) {
	t.Parallel()
	c, typed, ptmx := asks(t)
	c.pause = time.Hour
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error)
	go func() {
		done <- c.Ask(ctx, []string{"a question", "yes? "}, func(line string) bool {
			t.Errorf("%q was taken", line)
			return true
		})
	}()
	sees(t, ptmx, "a question\r\n")
	types(t, ptmx, "yes\r")
	for got := ""; got != "yes\r"; {
		got += string(<-typed)
	}
	why := errors.New("another question")
	cancel(why)
	rig.Is(t, <-done, why, "the question has ended with")
}

// answering asks a question that every line answers, and returns when the user sees it.
func answering(t *testing.T, c *Console, ptmx *os.File) (done chan error, answers chan string) {
	t.Helper()
	done, answers = make(chan error), make(chan string, 4)
	go func() {
		done <- c.Ask(t.Context(), []string{"a question", "yes? "}, func(line string) bool {
			answers <- line
			return true
		})
	}()
	sees(t, ptmx, "yes? ")
	return done, answers
}

// TestPastedAtConsole: no line answers behind which more was typed already, nor is that for the command.
func TestPastedAtConsole(t *testing.T) {
	t.Parallel()
	c, typed, ptmx := asks(t)
	done, answers := answering(t, c, ptmx)
	types(t, ptmx, "yes\rno\rrm\r")
	sees(t, ptmx, "yes? ")
	types(t, ptmx, "no\r")
	rig.Check(t, <-done)
	rig.Is(t, <-answers, "no", "the answer")
	rig.Is(t, len(answers)+len(typed), 0, "more answers, and reads for the command")
}

// TestModeChanged: no line answers that another program at the terminal could have edited.
func TestModeChanged(t *testing.T) {
	t.Parallel()
	c, _, ptmx := asks(t)
	done, answers := answering(t, c, ptmx)
	trap := *rig.Value(unix.IoctlGetTermios(int(c.tty.Fd()), unix.TCGETS))
	trap.Lflag |= unix.ICANON
	trap.Iflag |= unix.ICRNL
	trap.Cc[unix.VKILL] = '$'
	rig.Must(t, unix.IoctlSetTermios(int(c.tty.Fd()), unix.TCSETS, &trap))
	types(t, ptmx, "no\x1b[?25;1$yes\r")
	sees(t, ptmx, "yes? ")
	types(t, ptmx, "no\r")
	rig.Check(t, <-done)
	rig.Is(t, <-answers, "no", "the answer")
	c.stdin.Restore()
	rig.Is(t, rig.Value(unix.IoctlGetTermios(int(c.tty.Fd()), unix.TCGETS)).Cc[unix.VKILL] == '$', false, "the mode of the other program stays")
}

// TestFirstKey: the first of the keys that leave is for the command if no other follows soon, and
// keys that are typed at once leave.
func TestFirstKey(t *testing.T) {
	t.Parallel()
	_, tty, err := pty.Open()
	rig.Must(t, err)
	defer tty.Close()
	synctest.Test(t, func(t *testing.T) {
		typed := make(chan []byte, 4)
		c := &Console{stdin: program.NewTerminal(tty), command: Command{Keep: true}, typing: newLock()}
		c.ctx, c.end = context.WithCancelCause(t.Context())
		r := &typist{Console: c, typed: typed, keys: keys{wanted: []byte("\x10\x11")}}
		types := func(text string) {
			c.typing <- struct{}{}
			defer c.typing.free()
			r.pass(c.ctx, []byte(text))
		}
		types("a\x10")
		rig.Is(t, string(<-typed), "a", "typed before the key")
		rig.Is(t, len(typed), 0, "at once")
		rig.Is(t, string(<-typed), "\x10", "the key alone")
		types("\x11")
		rig.Is(t, string(<-typed), "\x11", "the next key, much later")
		types("\x10")
		time.Sleep(keyPatience / 2)
		types("\x11")
		rig.Is(t, context.Cause(c.ctx), ErrDetached, "both keys end the console with")
		rig.Is(t, len(typed), 0, "then typed for the command")
	})
}
