package console

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// lock is a mutex whose take gives up when a context ends. The channel holds a value while the
// mutex is held.
type lock chan struct{}

func newLock() lock { return make(lock, 1) }

func (l lock) take(ctx context.Context) bool {
	select {
	case l <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (l lock) free() { <-l }

// errOver ends a question when the command has ended.
var errOver = errors.New("the command has ended")

// CanAsk reports whether the console can ask the user: the user types at a terminal that also shows
// the question.
func (c *Console) CanAsk() bool { return c.at.Writable() }

// Ask is an [Ask]. It waits until a command has joined. Input from before the question goes to the
// command, later input does not. The command's output waits until there is an answer, because it
// could imitate another question.
func (c *Console) Ask(ctx context.Context, lines []string, take func(line string) bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.asking, func() { cancel(context.Cause(c.asking)) })()
	select {
	case <-c.ready:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if !c.screen.take(ctx) {
		return context.Cause(ctx)
	}
	defer c.screen.free()
	return c.converse(ctx, lines, take)
}

// endAsking ends all questions, and waits until none is on the screen.
func (c *Console) endAsking() {
	c.endAsks(errOver)
	c.screen <- struct{}{}
	c.screen.free()
}

// errContinued ends a question that is asked again, because this program was stopped meanwhile.
var errContinued = errors.New("continued")

// untilContinued returns a context that ends with errContinued when this program goes on after it
// was stopped (SIGCONT). Stop ends it, too.
func untilContinued(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	var waiting sync.WaitGroup
	waiting.Go(func() {
		select {
		case <-continued:
			cancel(errContinued)
		case <-ctx.Done():
		}
	})
	return ctx, func() {
		signal.Stop(continued)
		cancel(nil)
		waiting.Wait()
	}
}

// converse asks until there is an answer. If a shell stops and continues this program, the shell has
// used the terminal and left it in line mode. So the question is asked again, and a part of an
// answer is dropped.
func (c *Console) converse(ctx context.Context, lines []string, take func(string) bool) error {
	if !c.typing.take(ctx) {
		return context.Cause(ctx)
	}
	defer c.typing.free()
	for {
		here, stop := untilContinued(ctx)
		err := c.question(here, lines, take)
		stop()
		if !errors.Is(err, errContinued) {
			return err
		}
	}
}

// question asks once. It waits while this program is in the background of the terminal.
func (c *Console) question(ctx context.Context, lines []string, take func(string) bool) error {
	say := func(text string) { _, _ = io.WriteString(c.tty, text) } // a terminal that is gone yields no answer
	if !c.at.InForeground() {
		say(questionWaits)
	}
	if err := c.at.AwaitForeground(ctx); err != nil {
		return err
	}
	restore, err := c.at.Keys()
	if err != nil {
		return err
	}
	defer restore()
	for c.at.Ready() {
		if !c.before(ctx) {
			return context.Cause(ctx)
		}
	}
	columns, last := columnsOf(c.at), len(lines)-1
	say(questionHeading(lines[:last], columns))
	if err := c.settle(ctx); err != nil {
		c.withdraw(err, say)
		return err
	}
	for text := questionText(lines[last:], maxQuestion); ; {
		say(text)
		line, err := c.line(ctx, say)
		if err != nil {
			c.withdraw(err, say)
			return err
		}
		say("\r\n")
		switch {
		case c.at.Changed(): // the line may not be what the user has typed
		case line != Interrupted && c.at.Ready(): // pasted input is no answer
			for c.at.Ready() {
				if n, err := c.tty.Read(make([]byte, 4<<10)); n == 0 || err != nil {
					return ErrNobody
				}
			}
		case line == "~." && c.command.Job == nil:
			c.leave()
			return context.Cause(c.ctx)
		case take(line):
			if line == Interrupted && c.typist != nil {
				c.typist.pass(ctx, []byte{ctrlC})
			}
			return nil
		}
	}
}

// withdraw tells the user that a question needs no answer any more, unless it is asked again.
func (c *Console) withdraw(why error, say func(string)) {
	if !errors.Is(why, errContinued) {
		say(questionWithdrawn)
	}
}

// settle waits until nothing has been typed for a moment. Input until then goes to the command,
// because a user who still types has not read the question.
func (c *Console) settle(ctx context.Context) error {
	for {
		quiet, stop := context.WithTimeout(ctx, c.pause)
		err := c.at.Await(quiet)
		stop()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return nil
		case c.at.Ready() && !c.before(ctx):
			return ErrNobody
		}
	}
}

// before passes on input from before the question.
func (c *Console) before(ctx context.Context) bool {
	if c.typist != nil {
		return c.typist.read(ctx)
	}
	n, err := c.tty.Read(make([]byte, 4<<10))
	return n > 0 && err == nil
}

const (
	ctrlU      = 21 // VKILL
	ctrlZ      = 26 // VSUSP
	ctrlH, del = 8, 127
)

// line reads a line at a raw terminal, which neither edits nor echoes the input.
func (c *Console) line(ctx context.Context, say func(string)) (string, error) {
	line, key := make([]byte, 0, maxAnswer), make([]byte, 1)
	for {
		if err := c.at.Await(ctx); err != nil {
			return "", err
		}
		n, err := c.tty.Read(key)
		if err != nil || n == 0 {
			return "", ErrNobody
		}
		switch k := key[0]; {
		case k == '\r' || k == '\n':
			return string(line), nil
		case k == ctrlC:
			return Interrupted, nil
		case (k == del || k == ctrlH) && len(line) > 0:
			line = line[:len(line)-1]
			say("\b \b")
		case k == ctrlZ && c.command.Job != nil:
			c.command.Job.Stop(syscall.SIGTSTP)
		case k == ctrlU:
			for range line {
				say("\b \b")
			}
			line = line[:0]
		case ' ' <= k && k < del && len(line) < maxAnswer:
			line = append(line, k)
			say(string(k))
		}
	}
}
