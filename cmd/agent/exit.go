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
)

// Exit codes besides those of package program and of the command that is run, as env(1) and
// timeout(1) have them.
const (
	exitTimedOut      = 124
	exitExecFailure   = 125 // agent itself failed
	exitCannotExecute = 126
	exitNotFound      = 127
	exitSignal        = 128 // plus the number
)

// failed complains of an error, unless it is a signal, and returns the exit code: that of the
// signal or of the timeout if it is one of these, else code.
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

// plainly says in fewer words why a client has lost its agent for good.
func plainly(err error) error {
	lost, ok := errors.AsType[*client.DisconnectedError](err)
	if !ok || lost.Resume == nil {
		return err
	}
	if sessions.Unknown(lost.Resume) {
		return errors.New("the agent was restarted or has given up the session: what ran in it is gone")
	}
	if cause, ok := errors.AsType[*net.OpError](lost.Resume); ok {
		return fmt.Errorf("the agent has not come back: %w", cause)
	}
	return err
}

// timeoutError is why a command ends that has taken longer than --timeout.
type timeoutError time.Duration

func (e timeoutError) Error() string { return fmt.Sprintf("timed out after %v", time.Duration(e)) }
