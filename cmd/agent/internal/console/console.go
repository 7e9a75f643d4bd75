package console

import (
	"context"
	"errors"
	"io"
	"iter"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/protocol"
)

const (
	// quiet is how long the console waits for more output after the command has exited. Processes
	// that the command left in the background may still write; each output starts the time again. It
	// is not a second, because many of them write once a second.
	quiet = 1500 * time.Millisecond
	// signalPatience is the timeout of a request to signal or to kill the command. It includes the
	// time while the connection is lost.
	signalPatience = 2 * time.Second
	// readerPatience is how long a console that is to end waits for the reader of its output.
	readerPatience = 250 * time.Millisecond
	// lossPatience is how long the connection must be lost before the user is told.
	lossPatience = 2 * time.Second
	// silencePatience is how long typed input may have no effect before the console asks the agent for
	// a sign of life, and how long the agent then has for its answer.
	silencePatience = time.Second
)

// SignalError says that a signal has ended the console and was not passed on. For example no
// command had joined yet, the server refused the signal, or the reader of the output has closed it
// (SIGPIPE).
type SignalError struct{ syscall.Signal }

func (e SignalError) Error() string { return "ended by signal: " + e.Signal.String() }

// Process is a command, as its console sees it. [client.Process] says what the methods do.
type Process interface {
	Events(ctx context.Context) iter.Seq2[client.Event, error]
	Write(ctx context.Context, data []byte) error
	Stdin() io.WriteCloser
	CloseStdin(ctx context.Context) error
	Signal(ctx context.Context, signal protocol.Signal) error
	Resize(ctx context.Context, rows, cols uint16) error
	Terminate(ctx context.Context) error
	Discard()
}

// Job is a command on this machine. It stops and goes on together with this program, as if it had
// the user's terminal, so that the user's shell can stop it and continue it.
type Job interface {
	// Stopped returns the channel that gets the signals that have stopped the command.
	Stopped() <-chan syscall.Signal
	// Stop sends such a signal to the command.
	Stop(sig syscall.Signal)
	// Continue continues the command, in the foreground or in the background of its terminal. mode
	// is that of the user's terminal, without the changes of this program; nil if it is unknown.
	Continue(front bool, mode *unix.Termios)
}

// Command is the command that joins a console.
type Command struct {
	Client       *client.Client // nil: the command is no agent's
	Process      Process
	Job          Job                   // nil: the command does not stop together with this program
	Capabilities protocol.Capabilities // of the agent
	TTY          bool                  // the command has a terminal
	// Waits keeps the console from reading the user's terminal until the Job wants to use its own,
	// because another program of a pipeline may read the user's terminal.
	Waits bool
	Stdin bool // the command gets the standard input of this program
	// Keep lets the command run on when the console ends first. Another console can join the
	// command later.
	Keep bool
	// DetachKeys are the keys, see [ParseKeys], by which a user at a terminal ends the console and
	// keeps the command. They work only with Keep.
	DetachKeys []byte
	// KeepSignals makes a signal end the console, and keeps the signal from the command.
	KeepSignals bool
	// Refused, if not nil, gets what was refused to the command, when it has ended.
	Refused func(*protocol.Refusals)
	// Ended, if not nil, gets what else is known of the end of the command.
	Ended func(protocol.Ending)
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
	tty     *os.File          // where questions are asked
	at      *program.Terminal // tty as a terminal, the same as stdin if stdin is one; nil: none

	ctx     context.Context
	end     context.CancelCauseFunc
	joined  chan struct{} // closed when there is a command
	running sync.WaitGroup

	command Command       // set before joined is closed; then only follow changes it: Waits
	lost    atomic.Bool   // the user was told that the connection is lost or silent, and it is not back
	heard   chan struct{} // has one element if something has come from the command, see tellSilence
	keyed   chan struct{} // has one element if the user has typed, see tellSilence
	exited  atomic.Bool   // the command has ended; others may still print
	reads   chan struct{} // closed when the console may read the user's terminal
	begins  sync.Once     // closes reads

	// For questions, see [Console.Ask].
	asking  context.Context
	endAsks context.CancelCauseFunc
	ready   chan struct{} // closed when the terminal has the mode that the command needs
	screen  lock          // its holder writes to the terminal
	pause   time.Duration // see [questionPause]
	typing  lock          // its holder reads the terminal
	typist  *typist       // set once ready is closed; nil: the command gets no input from a terminal
}

// AtTerminal reports whether the user types at a terminal.
func (c *Console) AtTerminal() bool { return c.stdin != nil }

// Say writes a line to standard error beside the command's output.
func (c *Console) Say(text string) {
	if c.stdin.IsRaw() {
		text += "\r" // a raw terminal adds no carriage return to a newline
	}
	program.Complain(c.sys.Stderr, text)
}

// Open catches the signals of this program. The caller calls Close.
func Open(sys program.System) *Console { return OpenAt(sys, sys.Stdin) }

// OpenAt does what Open does, for a console that asks at another terminal if standard input is none,
// and that catches more signals.
func OpenAt(sys program.System, tty *os.File, more ...os.Signal) *Console {
	c := &Console{
		sys: sys, signals: make(chan os.Signal, 8), stdin: program.NewTerminal(sys.Stdin), tty: sys.Stdin, joined: make(chan struct{}),
		reads: make(chan struct{}), keyed: make(chan struct{}, 1), heard: make(chan struct{}, 1), ready: make(chan struct{}), pause: questionPause, screen: newLock(), typing: newLock(),
	}
	if c.at = c.stdin; c.at == nil {
		c.at, c.tty = program.NewTerminal(tty), tty
	}
	c.ctx, c.end = context.WithCancelCause(context.Background())
	c.asking, c.endAsks = context.WithCancelCause(c.ctx)
	program.Catch(c.signals, append(more, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGWINCH, syscall.SIGCONT)...)
	c.catchStop()
	c.running.Go(func() { c.passSignals(c.ctx) })
	return c
}

// Context returns a context that ends with the console. Its cause is a [SignalError] if a signal
// came before a command had joined.
func (c *Console) Context() context.Context { return c.ctx }

// End ends the console for a reason. It also kills the command, unless Keep is set.
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
	// Close restores the terminal as well. This call is for a panic, which would otherwise leave
	// the user's shell in a raw terminal without echo.
	defer c.stdin.Restore()
	defer c.endAsking()
	c.command = command
	front := command.Job == nil || c.isFront()
	close(c.joined)
	if command.TTY && front {
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
	if !command.Waits {
		c.begin()
	}
	close(c.ready)
	if command.Client != nil {
		c.running.Go(func() { c.tellLoss(c.ctx) })
		c.running.Go(func() { c.tellSilence(c.ctx) })
	}
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
			<-fits // the user types for a terminal of our size
			c.copyStdin(c.ctx, input)
		}()
	}
	exitCode, err = c.untilOver()
	if err != nil {
		c.command.Process.Discard()
		_ = c.abandon() // err has more detail
	}
	return exitCode, err
}
