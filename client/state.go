package client

import (
	"context"
	"maps"
	"slices"
)

// State is the state of a client's connection.
type State int

// The states of a client. Failed is final.
//
//	          the connection is lost
//	Connected ──────────────────────▶ Recovering ──┐
//	    ▲                                 │        │ cannot resume, or too late,
//	    └─────────────────────────────────┘        │ or closed
//	      session resumed, processes caught up     ▼
//	                                            Failed
const (
	Connected State = iota + 1
	Recovering
	Failed
)

func (s State) String() string {
	switch s {
	case Connected:
		return "connected"
	case Recovering:
		return "recovering"
	case Failed:
		return "failed"
	}
	return "unknown"
}

// State returns the state of the client, and a channel that is closed at the next
// change.
func (c *Client) State() (now State, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state, c.changed
}

// Generation counts the connections of the session that this client has had, from 1.
func (c *Client) Generation() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.generation
}

// Done is closed when the client has failed or was closed. A lost connection alone
// does not close it.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err returns the reason why Done is closed; nil before that.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failure == nil {
		return nil // not a nil *DisconnectedError, which would not be equal to nil
	}
	return c.failure
}

type failFastKey struct{}

// FailFast returns a context for calls that do not wait for a recovery: while the
// client recovers, they fail with [ErrRecovering].
func FailFast(ctx context.Context) context.Context {
	return context.WithValue(ctx, failFastKey{}, true)
}

// setLocked changes the state.
func (c *Client) setLocked(s State) {
	c.state = s
	close(c.changed)
	c.changed = make(chan struct{})
}

// connected returns the connection, and waits for it while the client recovers.
func (c *Client) connected(ctx context.Context) (*connection, error) {
	for {
		c.mu.Lock()
		state, changed, current, failure := c.state, c.changed, c.current, c.failure
		c.mu.Unlock()
		switch {
		case state == Connected:
			return current, nil
		case state == Failed:
			return nil, failure
		case ctx.Value(failFastKey{}) != nil:
			return nil, ErrRecovering
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// fail ends the client for good, once: calls, processes and bodies fail with why.
func (c *Client) fail(why *DisconnectedError) {
	c.mu.Lock()
	if c.state == Failed {
		c.mu.Unlock()
		return
	}
	c.failure = why
	c.setLocked(Failed)
	close(c.done)
	current := c.current
	processes := c.processesLocked()
	watches := slices.Collect(maps.Keys(c.watches))
	sockets := slices.Collect(maps.Values(c.sockets))
	c.mu.Unlock()
	c.cancel(why)
	if current != nil {
		current.stop(why)
	}
	for _, p := range processes {
		p.fail(why)
	}
	for _, w := range watches {
		w.fail(why)
	}
	for _, s := range sockets {
		s.stream.Fail(why)
	}
	select {
	case conn := <-c.replacement:
		_ = conn.Close() // no attempt will use it
	default:
	}
}
