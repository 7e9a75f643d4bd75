package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
)

// copyOutput writes the command's output until all of it has ended. Processes that
// the command has left in the background may hold it open for ever, so once the
// command has exited it also returns when they are silent. Nothing of the command
// itself is lost by that: all that it wrote comes before its exit (rpc.md 4.6).
func (e *execution) copyOutput(ctx context.Context) (code int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var silence *time.Timer
	for event, err := range e.process.Events(ctx) {
		if errors.Is(err, errSilent) {
			return code, nil
		}
		if err != nil {
			return 0, err
		}
		switch event.Kind {
		case client.Output:
			if silence != nil {
				silence.Stop() // our own writing may be slow, and does not count
			}
			if err := e.write(event); err != nil {
				return 0, err
			}
			if silence != nil {
				silence.Reset(quiet)
			}
		case client.Exited:
			code = event.ExitCode
			silence = time.AfterFunc(quiet, func() { cancel(errSilent) })
			defer silence.Stop()
		}
	}
	return code, nil
}

var errSilent = errors.New("no output for a while")

// write writes a chunk to where it belongs.
func (e *execution) write(event client.Event) error {
	f, name := e.sys.stdout, "standard output"
	if event.Stream == protocol.StreamStderr {
		f, name = e.sys.stderr, "standard error"
	}
	_, err := f.Write(event.Data)
	switch {
	case errors.Is(err, syscall.EPIPE):
		return signalError{syscall.SIGPIPE} // without an agent it would have ended the command
	case err != nil:
		return fmt.Errorf("writing to %s: %w", name, err)
	}
	return nil
}

// wireSignals are the signals that are passed on.
var wireSignals = map[os.Signal]protocol.Signal{
	syscall.SIGINT:  protocol.SignalInterrupt,
	syscall.SIGTERM: protocol.SignalTerminate,
	syscall.SIGHUP:  protocol.SignalHangup,
	syscall.SIGQUIT: protocol.SignalQuit,
}

// passSignals passes signals to the command and the size of the terminal to
// its own, until ctx ends. Before the command runs, and when the server does
// not take a signal, exec itself ends by it.
func (e *execution) passSignals(ctx context.Context, end context.CancelCauseFunc, started <-chan struct{}) {
	for {
		var received os.Signal
		select {
		case received = <-e.signals:
		case <-ctx.Done():
			return
		}
		select {
		case <-started:
		default:
			if sig := received.(syscall.Signal); sig != syscall.SIGWINCH {
				end(signalError{sig})
				return
			}
			continue
		}
		if received == syscall.SIGWINCH {
			e.resize(ctx)
			continue
		}
		if err := e.pass(ctx, received); err != nil && ctx.Err() == nil {
			end(signalError{received.(syscall.Signal)})
			return
		}
	}
}

// pass sends a signal to the command; to a server that knows no other, an
// interrupt.
func (e *execution) pass(ctx context.Context, received os.Signal) error {
	ctx, cancel := context.WithTimeout(ctx, signalPatience)
	defer cancel()
	sig := wireSignals[received]
	if !e.info.Capabilities.ProcessSignals {
		sig = protocol.SignalInterrupt
	}
	return e.process.Signal(ctx, sig)
}

// resize gives the command's terminal the size of this one.
func (e *execution) resize(ctx context.Context) {
	rows, cols, ok := e.size()
	if !ok || !e.flags.TTY || !e.info.Capabilities.ProcessResize {
		return
	}
	// A command that has just ended has no terminal to resize.
	_ = e.process.Resize(ctx, rows, cols)
}

// size is that of the first standard file that is a terminal.
func (e *execution) size() (rows, cols uint16, ok bool) {
	for _, t := range []*terminal{e.stdin, newTerminal(e.sys.stdout), newTerminal(e.sys.stderr)} {
		if rows, cols, ok = t.size(); ok {
			return rows, cols, true
		}
	}
	return 0, 0, false
}

// terminate kills the command.
func (e *execution) terminate() error {
	ctx, cancel := context.WithTimeout(context.Background(), signalPatience)
	defer cancel()
	return e.process.Terminate(ctx)
}
