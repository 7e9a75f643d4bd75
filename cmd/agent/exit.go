package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/agent/internal/console"
	"github.com/execagent/execagent/cmd/agent/internal/sessions"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/relay/api"
	"github.com/execagent/execagent/relay"
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
	program.Complain(sys.Stderr, sys.Hint(plainly(err)))
	if _, ok := errors.AsType[timeoutError](err); ok {
		return exitTimedOut
	}
	return code
}

// plainly shortens the error of a client that has lost its agent for good to one sentence. The log
// has all causes, at debug.
func plainly(err error) error {
	lost, ok := errors.AsType[*client.DisconnectedError](err)
	if !ok {
		return err
	}
	cause := cmp.Or(lost.Resume, lost.Err)
	refused, answered := errors.AsType[*relay.RegistryError](cause)
	network, broken := errors.AsType[*net.OpError](cause)
	switch {
	case lost.Resume != nil && (sessions.Unknown(lost.Resume) || errors.Is(lost.Resume, api.ErrExecutorChanged)):
		return errors.New("the agent was restarted or has given up the session, so the commands of the session are gone")
	case answered && (refused.Status == http.StatusUnauthorized || refused.Status == http.StatusForbidden):
		return errors.New("the connection to the agent is lost: the registry accepts the key no more, because it was revoked or has expired")
	case lost.Resume != nil && broken:
		return fmt.Errorf("the agent cannot be reached any more: %w", network)
	case cause == nil:
		return errors.New("the connection to the agent is lost")
	}
	for next := errors.Unwrap(cause); next != nil; next = errors.Unwrap(next) {
		cause = next
	}
	return fmt.Errorf("the connection to the agent is lost: %w", cause)
}

// timeoutError says that a command has taken longer than --timeout.
type timeoutError time.Duration

func (e timeoutError) Error() string { return fmt.Sprintf("timed out after %v", time.Duration(e)) }
