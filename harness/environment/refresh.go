package environment

import (
	"context"

	"github.com/execagent/execagent/client"
)

// Refresh is for a harness that hears that the executor behind the id may have been replaced, as
// planned (client.md 2.7). Where it has not, and the client has not failed, nothing changes. Where
// it has, the client is retired: its calls and handles fail with client.ErrReplaced, and nothing of
// them is repeated. An attempt to connect that is under way ends, and another one begins; who waits
// for the old one gets the result of the new one. In the end the executor is asked for its status.
//
// Only a registry knows whether an executor was replaced ([Noise]); where it cannot tell, its error
// is returned and the client stays as it is. One Refresh runs after the other. Errors are otherwise
// those of [Environment.Client] and client.Client.Status.
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

// supersede begins a new attempt in place of the client, if that is still current, and of the
// attempt that is under way.
func (e *Environment) supersede(current *client.Client) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.unavailable != nil || e.isPendingLocked() || !e.reconnects() || e.current != current {
		return // Client has nothing to connect, or does it by itself
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
