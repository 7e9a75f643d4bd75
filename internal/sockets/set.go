package sockets

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// maxSockets bounds the sockets of one [Set].
	maxSockets = 256
	// DialTimeout is the time limit for connecting.
	DialTimeout = 30 * time.Second
)

// Errors of a [Set].
var (
	ErrExists  = errors.New("there is a socket of this id already")
	ErrUnknown = errors.New("there is no socket of this id")
	ErrTooMany = fmt.Errorf("at most %d sockets of a session are open at once", maxSockets)
	errLate    = fmt.Errorf("no answer within %v", DialTimeout)
)

// A Set has the sockets of one client, by ids that the client has chosen. Its methods may be called
// concurrently.
type Set struct {
	budget *Budget
	owner  string          // of its share of the budget
	ctx    context.Context // ends with the set
	cancel context.CancelFunc

	mu      sync.Mutex // guards the fields below
	entries map[string]*slot
	closed  bool

	running sync.WaitGroup // counts dials
}

// slot is a socket that is connected or being connected.
type slot struct {
	cancel context.CancelFunc // ends the dial
	done   chan struct{}      // closed when the dial has ended; then the fields below are set
	socket *Socket
	err    error
}

// NewSet makes a set, which belongs to an owner. The caller ends it with CloseAll.
func NewSet(budget *Budget, owner string) *Set {
	s := &Set{budget: budget, owner: owner, entries: map[string]*slot{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Dialer opens a connection.
type Dialer func(context.Context) (Conn, error)

// Open opens a connection with dial, and makes a socket of it. window is the highest number of
// bytes that are read from the connection and not yet acknowledged. Open reserves the id and calls
// wait, then waits for dial. If wait fails, Open closes the socket. If ctx ends before the
// connection is made, dial continues, and Get returns the outcome.
func (s *Set) Open(ctx context.Context, id string, window uint64, dial Dialer, wait func() error) (*Socket, error) {
	e, dialing, err := s.reserve(ctx, id)
	if err != nil {
		return nil, err
	}
	s.running.Go(func() {
		defer e.cancel()
		conn, err := dial(dialing)
		if cause := context.Cause(dialing); err != nil && cause != nil {
			err = cause
		}
		s.settle(id, e, conn, err, window)
	})
	if err := wait(); err != nil {
		s.Close(id)
		return nil, err
	}
	return e.await(ctx)
}

// reserve takes an id for a socket that is about to be connected. It fails if ctx has ended,
// because the id must then stay free for the next request.
func (s *Set) reserve(ctx context.Context, id string) (*slot, context.Context, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return nil, nil, context.Cause(ctx)
	case s.closed:
		return nil, nil, ErrClosed
	case s.entries[id] != nil:
		return nil, nil, ErrExists
	case len(s.entries) == maxSockets:
		return nil, nil, ErrTooMany
	}
	if err := s.budget.enter(s.owner); err != nil {
		return nil, nil, err
	}
	e := &slot{done: make(chan struct{})}
	inTime, cancel := context.WithTimeoutCause(s.ctx, DialTimeout, errLate)
	dialing, give := context.WithCancelCause(inTime)
	e.cancel = func() { give(ErrClosed); cancel() }
	s.entries[id] = e
	s.running.Add(1) // until settle, because CloseAll also waits for the socket
	return e, dialing, nil
}

// settle stores the outcome of a dial.
func (s *Set) settle(id string, e *slot, conn Conn, err error, window uint64) {
	defer s.running.Done()
	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(e.done)
	if err == nil && s.entries[id] != e {
		err = ErrClosed
		_ = conn.Close()
	}
	if err == nil {
		if e.socket, err = newSocket(conn, window, &s.budget.Bytes, s.owner); err != nil {
			_ = conn.Close()
		}
	}
	if e.err = err; err != nil {
		s.budget.leave(s.owner)
		if s.entries[id] == e {
			delete(s.entries, id)
		}
	}
}

// await waits until the dial has ended.
func (e *slot) await(ctx context.Context) (*Socket, error) {
	select {
	case <-e.done:
		return e.socket, e.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Get returns the socket of an id. If the socket is being connected, Get calls wait and then waits
// for the connection. If connecting fails, Get returns ErrUnknown.
func (s *Set) Get(ctx context.Context, id string, wait func() error) (*Socket, error) {
	s.mu.Lock()
	e := s.entries[id]
	s.mu.Unlock()
	if e == nil {
		return nil, ErrUnknown
	}
	select {
	case <-e.done:
	default:
		if err := wait(); err != nil {
			return nil, err
		}
	}
	socket, err := e.await(ctx)
	if err != nil && ctx.Err() == nil {
		return nil, ErrUnknown
	}
	return socket, err
}

// Close closes the socket of an id, even if it is being connected. After Close the sink gets
// nothing more, but see Socket.close. Bytes written before are still sent, if the last write had eof.
// Otherwise the connection is reset.
func (s *Set) Close(id string) {
	s.mu.Lock()
	e := s.entries[id]
	delete(s.entries, id)
	s.mu.Unlock()
	if e != nil {
		s.end(e)
	}
}

// end closes a socket that is no longer in the set, and waits for its end.
func (s *Set) end(e *slot) {
	e.cancel()
	<-e.done
	if e.socket == nil {
		return
	}
	e.socket.close()
	e.socket.wait()
	s.budget.leave(s.owner)
}

// CloseAll closes all sockets and the set, and waits until none of their goroutines runs. The
// caller must make sure that no sink blocks.
func (s *Set) CloseAll() {
	s.mu.Lock()
	s.closed = true
	entries := s.entries
	s.entries = map[string]*slot{}
	s.mu.Unlock()
	s.cancel()
	for _, e := range entries {
		s.end(e)
	}
	s.running.Wait()
}
