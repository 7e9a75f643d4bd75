package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/protocol/strict"
	"github.com/execagent/execagent/rpc"
)

// connection is one connection to the server: a peer and the goroutine that runs
// the peer's Serve.
type connection struct {
	peer *rpc.Peer
	stop context.CancelCauseFunc
	done chan struct{} // closed when the reader has ended and all handles have failed
	err  *DisconnectedError
}

// start takes over a connection and reads it until it ends. It delivers all that
// came before the end before it makes the handles fail.
func (c *Client) start(conn rpc.Conn) *connection {
	ctx, stop := context.WithCancelCause(context.Background())
	l := &connection{stop: stop, done: make(chan struct{})}
	l.peer = rpc.NewPeer(writer{conn}, rpc.Config{Notification: c.notification})
	go func() {
		defer close(l.done)
		err := l.peer.Serve(ctx)
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		stop(nil)
		l.err = &DisconnectedError{Err: err}
		c.lost(l.err)
	}()
	return l
}

// lost fails every handle.
func (c *Client) lost(err error) {
	c.mu.Lock()
	processes := slices.Collect(maps.Values(c.processes))
	bodies := slices.Collect(maps.Values(c.bodies))
	c.mu.Unlock()
	for _, p := range processes {
		p.fail(err)
	}
	for _, b := range bodies {
		b.fail(err)
	}
}

// abort ends the connection without waiting.
func (l *connection) abort() { l.peer.Close() }

// close ends the connection for a reason and waits for the reader.
func (l *connection) close(reason error) {
	l.stop(reason)
	<-l.done
}

// writer marks the errors of writing a message, so that call can tell them from
// errors of encoding it.
type writer struct{ rpc.Conn }

func (w writer) Write(message []byte) error {
	if err := w.Conn.Write(message); err != nil {
		return &DisconnectedError{Err: err}
	}
	return nil
}

// call makes a request, see [Client.Call].
func (l *connection) call(ctx context.Context, method string, params, result any) error {
	err := l.peer.Call(ctx, method, params, result)
	if err == nil {
		return nil
	}
	if errors.Is(err, rpc.ErrClosed) {
		<-l.done
		return l.err
	}
	if refused, ok := errors.AsType[*protocol.Error](err); ok {
		return &ServerError{Err: refused}
	}
	if _, ok := errors.AsType[*DisconnectedError](err); ok || ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("calling %s: %w", method, err)
}

// notification takes a notification of the server, in the goroutine that reads. It
// ignores unknown ones; a known one that is malformed ends the connection
// (client.md 1.4). It waits while the queue that the notification goes into is
// full.
func (c *Client) notification(ctx context.Context, method string, params json.RawMessage) error {
	switch method {
	case protocol.MethodProcessOutput:
		var n protocol.OutputNotification
		if err := unmarshal(method, params, &n); err != nil {
			return err
		}
		c.deliver(ctx, n.ProcessID, Event{Kind: Output, Seq: n.Seq, Stream: n.Stream, Data: n.Chunk})
	case protocol.MethodProcessExited:
		var n protocol.ExitedNotification
		if err := unmarshal(method, params, &n); err != nil {
			return err
		}
		c.deliver(ctx, n.ProcessID, Event{Kind: Exited, Seq: n.Seq, ExitCode: n.ExitCode, SandboxDenied: n.SandboxDenied})
	case protocol.MethodProcessClosed:
		var n protocol.ClosedNotification
		if err := unmarshal(method, params, &n); err != nil {
			return err
		}
		c.deliver(ctx, n.ProcessID, Event{Kind: Closed, Seq: n.Seq})
	case protocol.MethodHTTPBodyDelta:
		var n protocol.HTTPBodyDelta
		if err := unmarshal(method, params, &n); err != nil {
			return err
		}
		c.deliverBody(ctx, &n)
	}
	return nil
}

// unmarshal reads params. Its error is not a *protocol.Error, which the peer
// would send to the server.
func unmarshal(method string, params json.RawMessage, into strict.Unmarshaler) error {
	if err := protocol.UnmarshalParams(params, into); err != nil {
		return protocolErrorf("notification %s: %v", method, err)
	}
	return nil
}

// deliver gives an event to its process, and drops the event of a process without a
// handle.
func (c *Client) deliver(ctx context.Context, id string, e Event) {
	c.mu.Lock()
	p := c.processes[id]
	c.mu.Unlock()
	if p != nil {
		p.accept(ctx, e)
	}
}

func (c *Client) deliverBody(ctx context.Context, d *protocol.HTTPBodyDelta) {
	c.mu.Lock()
	b := c.bodies[d.RequestID]
	c.mu.Unlock()
	if b != nil {
		b.accept(ctx, d)
	}
}
