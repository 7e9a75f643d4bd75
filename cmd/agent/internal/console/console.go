package console

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/protocol"
)

const (
	// quiet is how long the console stays after the command has exited, while processes
	// that the command has left in the background write nothing.
	quiet = time.Second
	// signalPatience is how long the agent may take to answer a request to signal
	// or to end the command, a lost connection included.
	signalPatience = 2 * time.Second
	// lossPatience is how long the connection is lost before the user hears of it.
	lossPatience = 2 * time.Second
)

// SignalError says that a signal has ended the console: no command had joined it yet,
// the server refused to pass the signal on, or the reader of the output has gone (SIGPIPE).
type SignalError struct{ syscall.Signal }

func (e SignalError) Error() string { return "ended by signal: " + e.Signal.String() }

// Command is the command that joins a console.
type Command struct {
	Client       *client.Client
	Process      *client.Process
	Capabilities protocol.Capabilities // of the agent
	TTY          bool                  // the command has a terminal
	Stdin        bool                  // it gets our standard input
	// Keep lets the command run on when the console ends before it: it can be joined again.
	Keep bool
	// DetachKeys are the keys, see [ParseKeys], by which a user at a terminal ends the console
	// and keeps the command. They count only with Keep.
	DetachKeys []byte
	// KeepSignals: a signal ends the console and does not reach the command.
	KeepSignals bool
	// Redraw makes a full-screen command draw its terminal again, for a user who joins it late.
	Redraw bool
}

// ErrDetached says that the user has left the console and the command runs on.
var ErrDetached = errors.New("detached")

// Console has at most one command.
type Console struct {
	sys     program.System
	signals chan os.Signal
	stdin   *program.Terminal // nil: not a terminal

	ctx     context.Context
	end     context.CancelCauseFunc
	joined  chan struct{} // closed when there is a command
	running sync.WaitGroup

	command Command     // from joined on
	lost    atomic.Bool // the user was told that the connection is lost, and it is not back

	// For questions, see [Console.Ask].
	asking  context.Context
	endAsks context.CancelCauseFunc
	ready   chan struct{} // closed when the terminal is as the command needs it
	screen  lock          // its holder writes to the terminal
	pause   time.Duration // see [questionPause]
	typing  lock          // its holder reads the terminal
	typist  *typist       // from ready on; nil: the command gets no input
}

// AtTerminal reports whether the user types at a terminal.
func (c *Console) AtTerminal() bool { return c.stdin != nil }

// Say writes a line to standard error beside the command's output.
func (c *Console) Say(text string) {
	if c.stdin.IsRaw() {
		text += "\r" // the terminal does not return by itself
	}
	program.Complain(c.sys.Stderr, text)
}

// Open catches the signals of this program. The caller calls Close.
func Open(sys program.System) *Console {
	c := &Console{
		sys: sys, signals: make(chan os.Signal, 8), stdin: program.NewTerminal(sys.Stdin), joined: make(chan struct{}),
		ready: make(chan struct{}), pause: questionPause, screen: newLock(), typing: newLock(),
	}
	c.ctx, c.end = context.WithCancelCause(context.Background())
	c.asking, c.endAsks = context.WithCancelCause(c.ctx)
	program.Catch(c.signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGWINCH)
	c.running.Go(func() { c.passSignals(c.ctx) })
	return c
}

// Context ends with the console. Its cause is a [SignalError] if a signal came before
// there was a command to pass it to.
func (c *Console) Context() context.Context { return c.ctx }

// End ends the console for a reason, and the command if there is one that is not to be kept.
func (c *Console) End(reason error) { c.end(reason) }

// Close restores the terminal. Signals stay caught, because the program is about to end, and a
// late signal, such as one Ctrl-C too many, must not change its exit code.
func (c *Console) Close() {
	c.end(nil)
	c.running.Wait()
	c.stdin.Restore()
}

// Join serves the command until the command ends. If Join fails it ends the command, unless Keep
// is set, because nobody reads the output any more. Join is called at most once.
func (c *Console) Join(command Command) (exitCode int, err error) {
	// Close restores the terminal as well. This is for a panic: it would leave the
	// user's shell in a raw terminal, where typing shows nothing.
	defer c.stdin.Restore()
	defer c.endAsking()
	c.command = command
	close(c.joined)
	if command.TTY {
		if err := c.stdin.Raw(); err != nil {
			return 0, errors.Join(err, c.abandon())
		}
	} else if n := len(command.DetachKeys); command.Keep && command.Stdin && n > 0 && command.DetachKeys[n-1] < ' ' {
		if err := c.stdin.EndAt(command.DetachKeys[n-1]); err != nil {
			return 0, err
		}
	}
	var input io.Reader
	if command.Stdin {
		input = c.input()
	}
	close(c.ready)
	c.running.Go(func() { c.tellLoss(c.ctx) })
	fits := make(chan struct{})
	c.running.Go(func() {
		defer close(fits)
		if command.Redraw {
			c.redraw(c.ctx)
		}
	})
	if command.Stdin {
		// A read of standard input cannot be interrupted, so this goroutine may
		// last until the program ends.
		go func() {
			<-fits // what is typed is for a terminal of our size
			c.copyStdin(c.ctx, input)
		}()
	}
	exitCode, err = c.copyOutput(c.ctx)
	if err != nil {
		c.command.Process.Discard()
		_ = c.abandon() // the error says more
	}
	return exitCode, err
}
