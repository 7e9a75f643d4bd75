package main

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/agent/internal/console"
	"github.com/execagent/execagent/cmd/agent/internal/sessions"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/relay/api"
)

// Exit codes besides those of package program, as for env(1) and timeout(1).
const (
	exitTimedOut      = 124
	exitExecFailure   = 125 // agent itself failed
	exitCannotExecute = 126
	exitNotFound      = 127
	exitSignal        = 128 // plus the number
)

// failed prints an error, unless it is a signal. It returns the exit code of the signal or of the
// timeout, else code.
func failed(sys program.System, err error, code int) int {
	if killed, ok := errors.AsType[console.SignalError](err); ok {
		return exitSignal + int(killed.Signal)
	}
	program.Complain(sys.Stderr, plainly(err))
	if _, ok := errors.AsType[timeoutError](err); ok {
		return exitTimedOut
	}
	return code
}

// plainly shortens the error of a client that has lost its agent for good.
func plainly(err error) error {
	lost, ok := errors.AsType[*client.DisconnectedError](err)
	if !ok || lost.Resume == nil {
		return err
	}
	if sessions.Unknown(lost.Resume) || errors.Is(lost.Resume, api.ErrExecutorChanged) {
		return errors.New("the agent was restarted or has given up the session, so the commands of the session are gone")
	}
	if cause, ok := errors.AsType[*net.OpError](lost.Resume); ok {
		return fmt.Errorf("the agent cannot be reached any more: %w", cause)
	}
	return err
}

// timeoutError says that a command has taken longer than --timeout.
type timeoutError time.Duration

func (e timeoutError) Error() string { return fmt.Sprintf("timed out after %v", time.Duration(e)) }
