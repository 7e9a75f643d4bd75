package environment

import (
	"context"
	"fmt"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
)

// State is the state of an environment, as known without asking or waiting.
type State string

// The states of an environment. Only a [Step] has environments that are missing.
const (
	// Starting: no attempt to connect has ended. There may be none.
	Starting State = "starting"
	// Ready: there is a client that has not failed. It may be recovering its connection.
	// The local environment is always ready.
	Ready State = "ready"
	// Failed: the last attempt or the last client has failed, or there is nothing to
	// connect to. An attempt under way does not change this until it succeeds.
	Failed State = "failed"
	// Missing: no environment has this id.
	Missing State = "missing"
)

// The values of [Status].
const (
	StatusReady        = "ready"        // its server has just said so; or it is local
	StatusPending      = "pending"      // no attempt has ended
	StatusDisconnected = "disconnected" // failed, or recovering its connection
	StatusUnknown      = "unknown"      // no environment has this id
)

// Status is the answer of a harness to environment/status.
type Status struct {
	Value string
	Err   error // the reason for disconnected or unknown; else nil
}

// State returns the state of the environment, and the reason of [Failed]. It waits for
// nothing and starts nothing.
func (e *Environment) State() (State, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stateLocked()
}

// Peek is State that also returns the client of a ready environment, as in [Captured].
func (e *Environment) Peek() (State, *client.Client, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	state, err := e.stateLocked()
	if state != Ready || e.current == nil || e.current.Err() != nil {
		return state, nil, err
	}
	return state, e.current, nil
}

func (e *Environment) stateLocked() (State, error) {
	switch {
	case e.closed:
		return Failed, ErrClosed
	case e.local, e.current != nil && e.current.Err() == nil:
		return Ready, nil
	case e.unavailable != nil:
		return Failed, e.unavailable
	case e.err != nil:
		return Failed, e.err
	case e.current != nil:
		return Failed, e.current.Err()
	}
	return Starting, nil
}

// Changed returns a channel that is closed when the state may have changed. To wait for a
// state, get the channel first.
func (e *Environment) Changed() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.changed
}

// Status asks the server of a live connection whether it is ready, for up to 10 s.
// Without a live connection it only returns the known state: it never connects, waits for
// a connection or repairs one (client.md 4.5).
func (e *Environment) Status(ctx context.Context) Status {
	e.mu.Lock()
	state, err := e.stateLocked()
	current := e.current
	e.mu.Unlock()
	switch {
	case state == Starting:
		return Status{Value: StatusPending}
	case state == Failed:
		return Status{StatusDisconnected, err}
	case e.local:
		return Status{Value: StatusReady}
	}
	answer, err := current.Status(ctx)
	if err == nil && answer != protocol.StatusReady {
		err = fmt.Errorf("exec-server has the status %.64q", answer)
	}
	if err != nil {
		return Status{StatusDisconnected, err}
	}
	return Status{Value: StatusReady}
}

// Status returns the status of the environment with an id, see [Environment.Status].
func (s *Set) Status(ctx context.Context, id string) Status {
	e, ok := s.Get(id)
	if !ok {
		return Status{StatusUnknown, &UnknownError{ID: id}}
	}
	return e.Status(ctx)
}
