package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/cmd/agent/internal/console"
	"github.com/execagent/execagent/cmd/internal/program"
)

// gcPercent is half of Go's own value, so that an agent keeps half as much memory after a burst.
// Garbage is collected more often. This costs little, because the large buffers, of messages and
// output, are pooled.
const gcPercent = 50

// untilSignal calls do with a context that ends with SIGINT, SIGTERM or SIGHUP, and also after
// limit unless limit is 0. err is the error of do. ended says what has ended the context before do
// has returned: a [console.SignalError] or a timeoutError, else nil.
func untilSignal(limit time.Duration, do func(context.Context) error) (ended, err error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	program.Catch(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		select {
		case received := <-signals:
			cancel(console.SignalError{Signal: received.(syscall.Signal)})
		case <-ctx.Done():
		}
	}()
	if limit > 0 {
		defer time.AfterFunc(limit, func() { cancel(timeoutError(limit)) }).Stop()
	}
	err = do(ctx)
	return context.Cause(ctx), err
}

// serveUntilSignal does what untilSignal does, for a server, and returns the exit code. A signal is
// an orderly end, unless serve fails. After SIGHUP the process dies by SIGHUP, as without a
// handler.
func serveUntilSignal(sys program.System, limit time.Duration, serve func(context.Context) error) int {
	if !slices.ContainsFunc(sys.Environ, func(v string) bool { return strings.HasPrefix(v, "GOGC=") }) {
		debug.SetGCPercent(gcPercent)
	}
	limitGoMemory(sys.Environ)
	if err := hideMemory(); err != nil {
		sys.Tell(err)
	}
	ended, err := untilSignal(limit, serve)
	if _, late := errors.AsType[timeoutError](ended); late {
		return sys.Fail(ended)
	}
	if err != nil {
		return sys.Fail(err)
	}
	if received, ok := errors.AsType[console.SignalError](ended); ok && received.Signal == syscall.SIGHUP {
		return program.DieOf(syscall.SIGHUP)
	}
	return program.ExitOK
}

// unlessEnded returns err, or nil if ctx has ended, because that end is no failure.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// hideMemory keeps other processes of the same user from reading the memory of this process,
// because in a container a confined command may see the agent's process. Only a process with
// CAP_SYS_PTRACE can still read it. As a side effect, the kernel writes no core file.
func hideMemory() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("other processes of this user can read the memory of this process: %w", err)
	}
	return nil
}
