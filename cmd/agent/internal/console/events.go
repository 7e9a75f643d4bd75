package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"syscall"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/protocol"
)

// untilOver does what copyOutput does. If the console is to end, it does not wait long for a reader
// of our output that reads nothing. In that case copyOutput outlives the console, and Close does not
// wait for it: its write ends when the reader reads, or with the program.
func (c *Console) untilOver() (code int, err error) {
	type result struct {
		code int
		err  error
	}
	over := make(chan result, 1)
	go func() {
		code, err := c.copyOutput(c.ctx)
		over <- result{code, err}
	}()
	ended := c.ctx.Done()
	var late <-chan time.Time
	for {
		select {
		case r := <-over:
			return r.code, r.err
		case <-ended:
			ended, late = nil, time.After(readerPatience)
		case <-late:
			return 0, context.Cause(c.ctx)
		}
	}
}

// copyOutput writes the command's output until both streams have ended, and
// returns the command's exit code.
//
// Processes that the command has left in the background may hold the streams open for ever. So once
// the command has exited, copyOutput also returns when no output has come for the time quiet. No
// output of the command itself is lost, because an agent sends all of it before it reports the exit
// (rpc.md 4.6).
func (c *Console) copyOutput(ctx context.Context) (code int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var silence *time.Timer
	var ended time.Time
	told := false
	for event, err := range c.command.Process.Events(ctx) {
		if errors.Is(err, errSilent) {
			return code, nil
		}
		if err != nil {
			return 0, err
		}
		select {
		case c.heard <- struct{}{}:
		default:
		}
		switch event.Kind {
		case client.Output:
			if silence != nil {
				silence.Stop() // the time that our own write takes is no silence
			}
			if err := c.write(event); err != nil {
				return 0, err
			}
			if silence != nil {
				if !told && time.Since(ended) > quiet {
					told = true
					c.Say(fmt.Sprintf(stayText, code))
				}
				silence.Reset(quiet)
			}
		case client.Exited:
			code, ended = event.ExitCode, time.Now()
			c.exited.Store(true)
			if c.command.Ended != nil {
				c.command.Ended(event.Ending)
			}
			if c.command.Refused != nil && event.Refusals != nil {
				c.command.Refused(event.Refusals)
			}
			silence = time.AfterFunc(quiet, func() { cancel(errSilent) })
			defer silence.Stop()
		}
	}
	return code, nil
}

// stayText says why the console stays although the command has ended.
const stayText = "the command has ended with exit code %d, but processes that it has left in the background still print; Ctrl-C ends the waiting"

// errSilent ends the events when the time quiet is over.
var errSilent = errors.New("no output for a while")

// write writes a chunk of output to our standard output or standard error, as the command did.
func (c *Console) write(event client.Event) error {
	f, name := c.sys.Stdout, "standard output"
	if event.Stream == protocol.StreamStderr {
		f, name = c.sys.Stderr, "standard error"
	}
	if !c.screen.take(c.ctx) {
		return context.Cause(c.ctx)
	}
	defer c.screen.free()
	if event.Omitted > 0 {
		c.Say(fmt.Sprintf("%d bytes of %s are left out here, by the bound on the output", event.Omitted, name))
	}
	data := event.Data
	if c.command.Job != nil && !c.stdin.IsRaw() && program.NewTerminal(f) != nil { // both terminals would add a carriage return
		data = bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n"))
	}
	_, err := f.Write(data)
	switch {
	case errors.Is(err, syscall.EPIPE):
		return SignalError{syscall.SIGPIPE} // without exec, this signal would have killed the command
	case err != nil:
		return fmt.Errorf("writing to %s: %w", name, err)
	}
	return nil
}

// wireSignals are the signals that exec passes on, with their names on the wire.
var wireSignals = map[syscall.Signal]protocol.Signal{
	syscall.SIGINT:  protocol.SignalInterrupt,
	syscall.SIGTERM: protocol.SignalTerminate,
	syscall.SIGHUP:  protocol.SignalHangup,
	syscall.SIGQUIT: protocol.SignalQuit,
	syscall.SIGUSR1: protocol.SignalUser1,
	syscall.SIGUSR2: protocol.SignalUser2,
}

// passSignals passes signals on to the command until ctx ends. For SIGWINCH it gives the command's
// terminal the new size. A signal ends the console with a SignalError if it comes before a command
// has joined or after the command has ended, if it is not for the command, or if the server refuses
// it. A job stops and goes on together with this program.
func (c *Console) passSignals(ctx context.Context) {
	var interrupts interrupts
	joined := c.joined
	var stopped <-chan syscall.Signal
	for {
		var received syscall.Signal
		select {
		case sig := <-c.signals:
			received = sig.(syscall.Signal)
		case sig := <-stopped:
			c.follow(sig)
			continue
		case <-joined:
			joined = nil
			if c.command.Job != nil {
				stopped = c.command.Job.Stopped()
			}
			continue
		case <-ctx.Done():
			return
		}
		there := c.hasJoined()
		switch {
		case received == syscall.SIGTSTP && there && c.command.Job != nil:
			c.command.Job.Stop(received) // this program follows the command
		case received == syscall.SIGTSTP:
			c.stop(received, false)
		case received == syscall.SIGCONT:
			c.resume()
			fallthrough
		case received == syscall.SIGWINCH:
			if there {
				c.resize(ctx)
			}
		case c.isForConsole(received, there, &interrupts) || c.pass(ctx, received) != nil && ctx.Err() == nil:
			c.end(SignalError{received})
			return
		}
	}
}

// isForConsole reports whether a signal ends the console, and is not passed on. there says that a
// command has joined.
func (c *Console) isForConsole(sig syscall.Signal, there bool, interrupts *interrupts) bool {
	switch {
	case !there, c.exited.Load(), c.command.KeepSignals:
		return true
	case sig == syscall.SIGHUP && c.command.Keep: // the user has closed the terminal, and the command runs on
		return true
	}
	return sig == syscall.SIGINT && c.command.Job == nil && interrupts.enough(time.Now())
}

// interrupts are the times of the last two Ctrl-C.
type interrupts [2]time.Time

// enough records a Ctrl-C, and reports whether it is the third within a second. In that case the
// command ignores Ctrl-C, and the user wants to leave.
func (i *interrupts) enough(now time.Time) bool {
	third := !i[0].IsZero() && now.Sub(i[0]) <= time.Second
	i[0], i[1] = i[1], now
	return third
}

// pass sends a signal to the command. A server without the capability
// processSignals can only interrupt, so there every signal becomes an interrupt.
//
// If the answer is lost with the connection, pass sends the signal again. Twice is better than
// never, and users repeat Ctrl-C as well.
func (c *Console) pass(ctx context.Context, received syscall.Signal) error {
	ctx, cancel := context.WithTimeout(ctx, signalPatience)
	defer cancel()
	sig := wireSignals[received]
	if !c.command.Capabilities.ProcessSignals {
		sig = protocol.SignalInterrupt
	}
	for {
		err := c.command.Process.Signal(ctx, sig)
		if lost, ok := errors.AsType[*client.DisconnectedError](err); !ok || !lost.Sent {
			return err
		}
	}
}

// tellLoss tells the user that the connection is lost.
func (c *Console) tellLoss(ctx context.Context) {
	WatchLoss(ctx, c.command.Client, func(lost bool) {
		c.lost.Store(lost)
		if lost {
			c.Say(LostText)
		}
	})
}

// tellSilence tells a user who types that the agent does not answer. A connection counts as lost only
// after 90 s of silence, because a slow network may need so long for a large message.
func (c *Console) tellSilence(ctx context.Context) {
	for {
		select {
		case <-c.keyed:
		case <-ctx.Done():
			return
		}
		select {
		case <-c.heard: // it came before the key
		default:
		}
		select {
		case <-c.heard:
			continue
		case <-time.After(silencePatience):
		case <-ctx.Done():
			return
		}
		if c.lost.Load() {
			continue
		}
		answered := make(chan struct{})
		c.running.Go(func() {
			defer close(answered)
			// The end of its own time is no answer. After any other error, tellLoss goes on.
			for late := (*client.TimeoutError)(nil); ctx.Err() == nil; {
				if _, err := c.command.Client.Status(ctx); !errors.As(err, &late) {
					return
				}
			}
		})
		select {
		case <-answered:
			continue
		case <-c.heard:
			continue
		case <-time.After(silencePatience):
		case <-ctx.Done():
			return
		}
		c.lost.Store(true)
		c.Say(silentText)
		select { // the next silence is told, too, even if the answer to this question never comes
		case <-answered:
		case <-c.heard:
		}
		c.lost.Store(false)
	}
}

// silentText tells the user that the agent does not answer.
const silentText = "the agent does not answer, waiting for it; Ctrl-C gives up"

// LostText tells the user that the connection is lost.
const LostText = "the connection is lost, waiting for it to come back; Ctrl-C gives up"

// WatchLoss calls changed(true) once for each loss, when the connection of a client has been lost
// for lossPatience. It calls changed(false) when that connection is back. It returns when ctx ends
// or the client has failed; the client's calls report the failure.
func WatchLoss(ctx context.Context, watched *client.Client, changed func(lost bool)) {
	told := false
	patience := time.NewTimer(0)
	defer patience.Stop()
	for {
		state, next := watched.State()
		var overdue <-chan time.Time
		switch state {
		case client.Failed:
			return
		case client.Connected:
			if told {
				told = false
				changed(false)
			}
		case client.Recovering:
			if !told {
				patience.Reset(lossPatience)
				overdue = patience.C
			}
		}
		select {
		case <-next:
		case <-overdue:
			told = true
			changed(true)
		case <-ctx.Done():
			return
		}
	}
}

// resize gives the command's terminal the size of ours. It does nothing if one of the two is no
// terminal, or if the server cannot resize.
func (c *Console) resize(ctx context.Context) {
	rows, cols, ok := c.sys.Size()
	if !ok || !c.command.TTY || !c.command.Capabilities.ProcessResize {
		return
	}
	// A command that has just ended has no terminal to resize.
	_ = c.command.Process.Resize(ctx, rows, cols)
}

// redraw makes a full-screen command draw its terminal again: it changes the terminal's size, and
// then sets the size of ours.
func (c *Console) redraw(ctx context.Context) {
	rows, cols, ok := c.sys.Size()
	if !ok || !c.command.TTY || !c.command.Capabilities.ProcessResize || cols == math.MaxUint16 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, signalPatience)
	defer cancel()
	_ = c.command.Process.Resize(ctx, rows, cols+1)
	c.resize(ctx)
}

// abandon kills the command, unless it is to be kept.
func (c *Console) abandon() error {
	if c.command.Keep {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), signalPatience)
	defer cancel()
	return c.command.Process.Terminate(ctx)
}
