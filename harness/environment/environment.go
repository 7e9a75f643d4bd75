package environment

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/execagent/execagent/client"
)

// clientName is the client name for servers, unless the [Connector] has another one.
const clientName = "codex-environment"

// Environment is the handle of one environment of a [Set]: the way to the executor behind
// an id. The id stands for the same executor and contents for ever. The handle belongs to
// this process, and [Set.Upsert] may replace it. Its methods may be called concurrently.
//
//	not begun ──► startup ──► client ──► client has failed ◄──┐
//	                 │                          │             │ failed
//	                 └──► failed ───────────────┴──► reconnect┘
//	                                                     └──► client
//
// There is one startup, whose result is kept, and then any number of reconnects, one at a time.
// [Environment.Refresh] may begin a reconnect at any time. A client that recovers its connection
// has not failed, and this type does nothing about it.
type Environment struct {
	id          string
	skills      Skills
	local       bool
	provisioned bool // made by Provision, so the transport comes with Ready
	configure   func(Transport) (client.Config, error)
	life        context.Context // ends when the environment is closed
	stop        context.CancelCauseFunc
	routines    sync.WaitGroup
	refreshes   chan struct{} // has one while Refresh runs
	set         *Set
	holds       int // guarded by set.mu: one of the set itself, and one per hold

	mu          sync.Mutex       // guards what follows
	transport   Transport        // nil for local, and until Ready was called
	roots       []CapabilityRoot // of the call of Ready
	unavailable *UnavailableError
	wanted      bool // Start was called before Ready
	startup     *attempt
	reconnect   *attempt                            // nil while there is none
	current     *client.Client                      // of the last attempt that succeeded
	same        func(context.Context) (bool, error) // of its configuration
	err         error                               // of the last attempt, if it has failed
	closed      bool
	changed     chan struct{} // closed at the next change
}

// How long connecting to a provisioned environment behind Noise is tried while its
// executor is offline, with a pause after each failure (client.md 1.2).
const (
	provisionedPatience = 5 * time.Minute
	provisionedPause    = time.Second
)

// attempt is one attempt to connect, and its result once done is closed.
type attempt struct {
	done   chan struct{}
	client *client.Client
	err    error // errSuperseded: another attempt has replaced it
	cancel context.CancelCauseFunc
}

// errSuperseded ends an attempt that Refresh replaced.
var errSuperseded = errors.New("another attempt has begun")

func (a *attempt) isDone() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// newEnvironment makes an environment without a transport, and starts nothing.
func newEnvironment(s *Set, id string, skills Skills) *Environment {
	ctx, stop := context.WithCancelCause(context.Background())
	return &Environment{
		id:        id,
		skills:    skills,
		set:       s,
		configure: s.connector,
		life:      ctx,
		stop:      stop,
		refreshes: make(chan struct{}, 1),
		changed:   make(chan struct{}),
	}
}

// ID returns the name that the environment is registered by.
func (e *Environment) ID() string { return e.id }

// Skills returns the skills that the environment must have.
func (e *Environment) Skills() Skills { return e.skills }

// IsRemote reports whether the environment has, or will have, a transport. It does not
// say where the executor runs: a program that this process starts is remote. Only
// [Local] is not remote.
func (e *Environment) IsRemote() bool { return !e.local }

// Client returns the client of the environment, and connects if there is none (client.md
// 3.5). All callers share one attempt; ctx bounds the wait, not the attempt. The
// environment closes the client.
//
// A client that recovers its connection is returned as it is: its calls wait. After a
// client has failed, the next call connects again, in a new session, except for a
// [Stdio], which runs once. The same holds after a failed attempt if [client.Retryable]
// is true for its error. Errors: [AttemptError], [UnavailableError], [ErrClosed], the
// reason why a program's client failed, the cause of ctx.
func (e *Environment) Client(ctx context.Context) (*client.Client, error) {
	for {
		e.mu.Lock()
		changed := e.changed
		c, a, err := e.nextLocked()
		e.mu.Unlock()
		switch {
		case c != nil || err != nil:
			return c, err
		case a != nil:
			changed = a.done
		}
		select {
		case <-changed:
			if a != nil && a.err != errSuperseded {
				return a.client, a.err
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Start makes the environment connect in the background if it has no usable client,
// under the conditions of [Environment.Client]. It waits for nothing.
func (e *Environment) Start() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.wanted = true
	_, _, _ = e.nextLocked() // callers that need the result ask for it
}

// nextLocked returns the usable client, or the attempt that may bring one, which it begins
// if necessary, or the reason why there will be none. While the environment waits to be
// provisioned, it returns neither.
func (e *Environment) nextLocked() (*client.Client, *attempt, error) {
	switch {
	case e.closed:
		return nil, nil, ErrClosed
	case e.unavailable != nil:
		return nil, nil, e.unavailable
	case e.isPendingLocked():
		return nil, nil, nil
	case e.current != nil && e.current.Err() == nil:
		return e.current, nil, nil
	case e.startup == nil:
		e.startup = e.beginLocked()
		return nil, e.startup, nil
	case !e.startup.isDone():
		return nil, e.startup, nil
	case e.reconnect != nil:
		return nil, e.reconnect, nil
	case e.startup.err != nil && e.current == nil && (!e.reconnects() || !client.Retryable(e.startup.err)):
		return nil, nil, e.startup.err
	case !e.reconnects():
		return nil, nil, e.current.Err()
	}
	e.reconnect = e.beginLocked()
	return nil, e.reconnect, nil
}

// isPendingLocked reports whether the environment has no transport yet.
func (e *Environment) isPendingLocked() bool { return !e.local && e.transport == nil }

// reconnects reports whether there may be more than one connection. The transport does
// not change once it is set.
func (e *Environment) reconnects() bool { return e.local || e.transport.eager() }

// beginLocked starts an attempt.
func (e *Environment) beginLocked() *attempt {
	ctx, cancel := context.WithCancelCause(e.life)
	a := &attempt{done: make(chan struct{}), cancel: cancel}
	old, transport := e.current, e.transport
	e.routines.Go(func() {
		defer cancel(nil)
		if old != nil {
			old.Retire() // it has failed, or Refresh wants another one
		}
		c, same, err := e.connect(ctx, transport)
		e.finish(ctx, a, c, same, err)
	})
	return a
}

// connect makes a client, and a func that reports whether the client still has the right executor.
// A provisioned executor behind Noise may take a while to appear.
func (e *Environment) connect(ctx context.Context, t Transport) (c *client.Client, same func(context.Context) (bool, error), err error) {
	patient, stop := ctx, func() {}
	if _, noise := t.(Noise); noise && e.provisioned {
		patient, stop = context.WithTimeout(ctx, provisionedPatience)
	}
	defer stop()
	for {
		cfg, err := e.configured(t)
		if err == nil {
			c, err = client.Connect(ctx, cfg)
		}
		if patient == ctx || err == nil || !client.Retryable(err) {
			return c, cfg.Same, err
		}
		select {
		case <-time.After(provisionedPause):
		case <-patient.Done():
			return nil, nil, err
		}
	}
}

// configured returns the client configuration for a transport.
func (e *Environment) configured(t Transport) (client.Config, error) {
	cfg, err := e.configure(t)
	if err != nil {
		return client.Config{}, err
	}
	cfg.ClientName = cmp.Or(cfg.ClientName, clientName)
	if t != nil {
		connect, initialize := t.timeouts()
		cfg.ConnectTimeout = cmp.Or(cfg.ConnectTimeout, connect)
		cfg.InitializeTimeout = cmp.Or(cfg.InitializeTimeout, initialize)
		if !t.eager() {
			cfg.Single = true
		}
	}
	return cfg, nil
}

// finish publishes the result of an attempt.
func (e *Environment) finish(ctx context.Context, a *attempt, c *client.Client, same func(context.Context) (bool, error), err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case errors.Is(context.Cause(ctx), errSuperseded):
		if c != nil {
			e.routines.Go(c.Retire)
		}
		a.err = errSuperseded
	case e.closed:
		if c != nil {
			// Close of the environment waits for this goroutine, and for that one.
			e.current = c
		}
		a.err = ErrClosed
	case err != nil:
		a.err = &AttemptError{Err: err}
		e.err = a.err
	default:
		a.client, e.current, e.same, e.err = c, c, same, nil
		e.routines.Go(func() { e.watch(c) })
	}
	if e.reconnect == a {
		e.reconnect = nil
	}
	close(a.done)
	e.changeLocked()
}

// watch frees the resources of a client as soon as it has failed.
func (e *Environment) watch(c *client.Client) {
	select {
	case <-e.life.Done():
		return
	case <-c.Done():
	}
	_ = c.Close() // it has failed; its error is known
	e.mu.Lock()
	defer e.mu.Unlock()
	e.changeLocked()
}

// changeLocked wakes callers that wait for a change.
func (e *Environment) changeLocked() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// close ends the environment with its client, and waits for its goroutines.
func (e *Environment) close() {
	e.mu.Lock()
	if !e.closed {
		e.closed = true
		e.stop(ErrClosed)
		e.changeLocked()
	}
	e.mu.Unlock()
	e.routines.Wait() // no new one begins
	e.mu.Lock()
	current := e.current
	e.mu.Unlock()
	if current != nil {
		_ = current.Close() // it has nothing to report
	}
}
