package console

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/creack/pty"

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
		sys: program.System{Stdin: tty, Stdout: tty, Stderr: tty}, stdin: program.NewTerminal(tty),
		ctx: t.Context(), asking: t.Context(), ready: make(chan struct{}), screen: newLock(), typing: newLock(),
	}
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

// TestPastedAtConsole: no line answers behind which more was typed already, nor is that for the command.
func TestPastedAtConsole(t *testing.T) {
	t.Parallel()
	c, typed, ptmx := asks(t)
	done, answers := make(chan error), make(chan string, 4)
	go func() {
		done <- c.Ask(t.Context(), []string{"a question", "yes? "}, func(line string) bool {
			answers <- line
			return true
		})
	}()
	sees(t, ptmx, "yes? ")
	types(t, ptmx, "yes\rno\rrm\r")
	sees(t, ptmx, "yes? ")
	types(t, ptmx, "no\r")
	rig.Check(t, <-done)
	rig.Is(t, <-answers, "no", "the answer")
	rig.Is(t, len(answers)+len(typed), 0, "more answers, and reads for the command")
}
