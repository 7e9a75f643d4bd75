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

// copyOutput writes the command's output until both streams have ended, and
// returns the command's exit code.
//
// Processes that the command has left in the background may hold the streams open
// for ever. So once the command has exited, copyOutput also returns when nothing
// has come for the time quiet. It loses nothing that the command itself wrote: an
// agent sends all of that before it tells of the exit (rpc.md 4.6).
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
				silence.Stop() // the time that our own write takes is no silence
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

// errSilent ends the events when quiet is over.
var errSilent = errors.New("no output for a while")

// write writes a chunk of output to the stream of ours that the command wrote to.
func (e *execution) write(event client.Event) error {
	f, name := e.sys.stdout, "standard output"
	if event.Stream == protocol.StreamStderr {
		f, name = e.sys.stderr, "standard error"
	}
	_, err := f.Write(event.Data)
	switch {
	case errors.Is(err, syscall.EPIPE):
		return signalError{syscall.SIGPIPE} // of which the command would have died without exec
	case err != nil:
		return fmt.Errorf("writing to %s: %w", name, err)
	}
	return nil
}

// wireSignals are the signals that exec passes on, with their names on the wire.
var wireSignals = map[os.Signal]protocol.Signal{
	syscall.SIGINT:  protocol.SignalInterrupt,
	syscall.SIGTERM: protocol.SignalTerminate,
	syscall.SIGHUP:  protocol.SignalHangup,
	syscall.SIGQUIT: protocol.SignalQuit,
}

// passSignals passes signals on to the command until ctx ends; with SIGWINCH it
// gives the command's terminal the new size. A signal that comes before started is
// closed, or that the server refuses, ends exec: passSignals calls end with a
// signalError.
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

// pass sends a signal to the command. A server without the capability
// processSignals can only interrupt, so there every signal becomes an interrupt.
//
// If the answer is lost with the connection it sends the signal again: once too often
// is what users do as well, and never would be worse.
func (e *execution) pass(ctx context.Context, received os.Signal) error {
	ctx, cancel := context.WithTimeout(ctx, signalPatience)
	defer cancel()
	sig := wireSignals[received]
	if !e.info.Capabilities.ProcessSignals {
		sig = protocol.SignalInterrupt
	}
	for {
		err := e.process.Signal(ctx, sig)
		if lost, ok := errors.AsType[*client.DisconnectedError](err); !ok || !lost.Sent {
			return err
		}
	}
}

// tellLoss tells the user, once for each loss, that the connection is lost and does not
// come back at once. It returns when ctx ends or the client has failed, which is told
// elsewhere.
func (e *execution) tellLoss(ctx context.Context) {
	patience := time.NewTimer(0)
	defer patience.Stop()
	for {
		state, changed := e.client.State()
		var overdue <-chan time.Time
		switch state {
		case client.Failed:
			return
		case client.Connected:
			e.lost.Store(false)
		case client.Recovering:
			if !e.lost.Load() {
				patience.Reset(lossPatience)
				overdue = patience.C
			}
		}
		select {
		case <-changed:
		case <-overdue:
			e.lost.Store(true)
			e.say("the connection is lost, waiting for it to come back; Ctrl-C gives up")
		case <-ctx.Done():
			return
		}
	}
}

// say writes a line to standard error beside the command's output.
func (e *execution) say(text string) {
	if e.stdin.isRaw() {
		text += "\r" // the terminal does not return by itself
	}
	complain(e.sys.stderr, text)
}

// resize gives the command's terminal the size of ours. It does nothing where one
// of the two is no terminal, or the server cannot resize.
func (e *execution) resize(ctx context.Context) {
	rows, cols, ok := e.size()
	if !ok || !e.flags.TTY || !e.info.Capabilities.ProcessResize {
		return
	}
	// A command that has just ended has no terminal to resize.
	_ = e.process.Resize(ctx, rows, cols)
}

// size is that of our terminal: of the first of standard input, output and error
// that is one.
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
