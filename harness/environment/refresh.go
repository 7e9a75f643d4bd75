package environment

import (
	"context"

	"github.com/execagent/execagent/client"
)

// Refresh is for a harness that learns that the executor behind the id may have been replaced, as
// planned (client.md 2.7). If it was not replaced, and the client has not failed, nothing changes.
// If it was, the client is retired: its calls and handles fail with client.ErrReplaced, and no call
// is repeated. An attempt to connect that is under way ends, and another one begins; callers that
// wait for the old attempt get the result of the new one. Finally, the executor is asked for its
// status.
//
// Only a registry knows whether an executor was replaced ([Noise]); if it does not answer, its
// error is returned and the client stays. Calls of Refresh run one after the other. Other errors
// come from [Environment.Client] and client.Client.Status.
func (e *Environment) Refresh(ctx context.Context) error {
	select {
	case e.refreshes <- struct{}{}:
		defer func() { <-e.refreshes }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	e.mu.Lock()
	current, same := e.current, e.same
	connected := current != nil && current.Err() == nil
	e.mu.Unlock()
	if connected && same != nil {
		var err error
		if connected, err = same(ctx); err != nil {
			return err
		}
	}
	if !connected {
		e.supersede(current)
	}
	c, err := e.Client(ctx)
	if err != nil {
		return err
	}
	for {
		state, changed := c.State()
		if state != client.Recovering {
			_, err := c.Status(ctx)
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// supersede begins a new attempt, which replaces the client, if it is still current, and the
// attempt under way.
func (e *Environment) supersede(current *client.Client) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.unavailable != nil || e.isPendingLocked() || !e.reconnects() || e.current != current {
		return // Client has nothing to connect, or connects by itself
	}
	switch {
	case e.startup == nil: // it is about to begin
	case !e.startup.isDone():
		e.startup.cancel(errSuperseded)
		e.startup = e.beginLocked()
	default:
		if e.reconnect != nil {
			e.reconnect.cancel(errSuperseded)
		}
		e.reconnect = e.beginLocked()
	}
	e.current = nil
	e.changeLocked()
}
