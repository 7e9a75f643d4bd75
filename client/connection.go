package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/execagent/execagent/client/internal/asked"
	"github.com/execagent/execagent/client/internal/queue"
	"github.com/execagent/execagent/internal/strictjson"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
)

// maxCalls is how many calls may wait for their answers on one connection.
const maxCalls = 1024

// connection is one connection of the session: a peer and the goroutine that runs
// the peer's Serve. A client has one after the other.
type connection struct {
	client *Client
	peer   *rpc.Peer
	asked  asked.Questions
	stop   context.CancelCauseFunc
	done   chan struct{} // closed when the reader has ended and the client knows it
	lost   *DisconnectedError

	calls  atomic.Int64
	useful atomic.Bool    // it has carried an answer to a caller, or an event
	starts sync.WaitGroup // calls of process/start, until the handle is settled

	// Both are guarded by the client's mutex.
	installed time.Time
	gone      bool // the reader has ended

	mu      sync.Mutex // guards what follows
	bodies  map[string]*body
	watches map[string]*Watch
	ports   map[string]*PortWatch
	ended   bool // bodies takes no more
}

// open takes a connection and reads it until it ends.
func (c *Client) open(conn rpc.Conn) *connection {
	ctx, stop := context.WithCancelCause(context.Background())
	l := &connection{
		client: c, stop: stop, done: make(chan struct{}), bodies: map[string]*body{}, watches: map[string]*Watch{},
		ports: map[string]*PortWatch{},
	}
	l.asked.Network, l.asked.Approvals = &c.cfg.Network, &c.cfg.Approvals
	l.peer = rpc.NewPeer(writer{conn}, rpc.Config{Table: l.asked.Table(), Notification: l.notification})
	go l.read(ctx)
	return l
}

// read delivers all messages. Only after that, bodies fail and the client learns
// of the end.
func (l *connection) read(ctx context.Context) {
	defer close(l.done)
	err := l.peer.Serve(ctx)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	l.stop(nil)
	lost, ok := errors.AsType[*DisconnectedError](err)
	if !ok {
		lost = &DisconnectedError{Err: err}
	}
	l.lost = lost

	l.mu.Lock()
	bodies := l.bodies
	l.bodies, l.ended = nil, true
	l.mu.Unlock()
	for _, b := range bodies {
		b.bytes.Fail(lost.sent())
	}
	l.client.lost(l)
}

// abort ends the connection without waiting.
func (l *connection) abort() { l.peer.Close() }

// close ends the connection for a reason and waits for the reader.
func (l *connection) close(reason error) {
	l.stop(reason)
	<-l.done
}

// writer marks the errors of writing a message, so that call can tell them from
// errors of encoding it. It is an [rpc.Rejecter].
type writer struct{ rpc.Conn }

func (w writer) Write(message []byte) error {
	if err := w.Conn.Write(message); err != nil {
		return &DisconnectedError{Err: err}
	}
	return nil
}

// Reject ends the connection at a message that cannot be understood, because it could be an answer
// that a call waits for.
func (w writer) Reject(reason error) {
	if conn, ok := w.Conn.(rpc.Rejecter); ok {
		conn.Reject(reason)
		return
	}
	_ = w.Close()
}

// called makes a request for a caller of the client, see [Client.Call].
func (l *connection) called(ctx context.Context, method string, params, result any) error {
	err := l.call(ctx, method, params, result)
	if _, refused := errors.AsType[*ServerError](err); err == nil || refused {
		l.useful.Store(true)
	}
	return err
}

// call makes a request on this connection. A server that has no room for the request is asked again
// after a while.
func (l *connection) call(ctx context.Context, method string, params, result any) error {
	for {
		wait, err := l.begin(method, params)
		if err != nil {
			return err
		}
		if err = wait(ctx, result); !isBusy(err) {
			return err
		}
		if sleep(ctx, pause) != nil {
			return context.Cause(ctx)
		}
	}
}

// begin sends a request, and returns a func that waits for the answer and must be called once.
func (l *connection) begin(method string, params any) (wait func(ctx context.Context, result any) error, err error) {
	if err := checkText(params); err != nil {
		return nil, fmt.Errorf("calling %s: %w", method, err)
	}
	if l.calls.Add(1) > maxCalls {
		l.calls.Add(-1)
		return nil, ErrTooManyCalls
	}
	call, err := l.peer.Begin(method, params)
	if err != nil {
		l.calls.Add(-1)
		return nil, l.explain(context.Background(), method, err)
	}
	return func(ctx context.Context, result any) error {
		defer l.calls.Add(-1)
		return l.explain(ctx, method, call.Wait(ctx, result))
	}, nil
}

// explain turns the error of a call into an error for callers of the client.
func (l *connection) explain(ctx context.Context, method string, err error) error {
	if err == nil {
		return nil
	}
	refused, ok := errors.AsType[*protocol.Error](err)
	if ok && !transportClosed(refused) {
		return &ServerError{Err: refused.Bounded()}
	}
	_, unwritten := errors.AsType[*DisconnectedError](err)
	switch {
	case ok, unwritten:
		// The reader may not have noticed. Even after a failed write, the message may
		// have arrived.
		l.abort()
		<-l.done
		return l.lost.sent()
	case errors.Is(err, rpc.ErrUnanswered):
		<-l.done
		return l.lost.sent()
	case errors.Is(err, rpc.ErrClosed):
		<-l.done
		return l.lost
	case ctx.Err() != nil:
		return err
	}
	return fmt.Errorf("calling %s: %w", method, err)
}

// isLoss reports whether a call failed because its connection is gone.
func isLoss(err error) bool {
	_, lost := errors.AsType[*DisconnectedError](err)
	return lost
}

// isBusy reports whether the server did not carry out a request because too much waits there.
func isBusy(err error) bool { return reasonOf(err) == "busy" }

// isShortOfMemory reports whether the server had no memory for an answer.
func isShortOfMemory(err error) bool { return reasonOf(err) == "memory" }

// reasonOf is the reason that a refusal gives to programs, or "".
func reasonOf(err error) string {
	if refused, ok := errors.AsType[*ServerError](err); ok {
		return refused.Err.Reason()
	}
	return ""
}

// transportClosed reports whether a refusal is the reference's word for a lost
// connection (client.md 1.5).
func transportClosed(err *protocol.Error) bool {
	return err.Code == -32000 && err.Message == "JSON-RPC transport closed"
}

// unsent reports whether the connection was gone before the request was sent.
func unsent(err error) bool {
	lost, ok := errors.AsType[*DisconnectedError](err)
	return ok && !lost.Sent
}

// notification takes a notification of the server, in the goroutine that reads. It
// ignores unknown ones; a known one that is malformed ends the connection
// (client.md 1.4). It waits while the queue that the notification goes into is
// full.
func (l *connection) notification(ctx context.Context, method string, params json.RawMessage) error {
	switch method {
	case protocol.MethodProcessOutput:
		var n protocol.OutputNotification
		if err := unmarshal(method, params, &n); err != nil {
			return err
		}
		l.deliver(ctx, n.ProcessID, Event{Kind: Output, Seq: n.Seq, Stream: n.Stream, Data: queue.Keep(n.Chunk), Omitted: n.Omitted})
	case protocol.MethodProcessExited:
		var n protocol.ExitedNotification
		if err := unmarshal(method, params, &n); err != nil {
			return err
		}
		l.deliver(ctx, n.ProcessID, Event{Kind: Exited, Seq: n.Seq, ExitCode: n.ExitCode, SandboxDenied: n.SandboxDenied, Refusals: n.Refusals, Ending: n.Ending})
	case protocol.MethodProcessClosed:
		var n protocol.ClosedNotification
		if err := unmarshal(method, params, &n); err != nil {
			return err
		}
		l.deliver(ctx, n.ProcessID, Event{Kind: Closed, Seq: n.Seq})
	case protocol.MethodHTTPBodyDelta:
		var n protocol.HTTPBodyDelta
		if err := unmarshal(method, params, &n); err != nil {
			return err
		}
		l.mu.Lock()
		b := l.bodies[n.RequestID]
		l.mu.Unlock()
		if b != nil {
			b.accept(ctx, &n)
		}
	case protocol.MethodSessionTaken:
		var n protocol.TakenNotification
		if err := unmarshal(method, params, &n); err != nil {
			return err
		}
		l.client.fail(&DisconnectedError{Err: fmt.Errorf("%w: %.128q has it now", ErrTaken, n.ClientName)})
	case protocol.MethodNetworkPolicyDecision:
		var d protocol.PolicyDecision
		if err := unmarshal(method, params, &d); err != nil {
			return err
		}
		if decided := l.client.cfg.Network.Decided; decided != nil {
			decided(d)
		}
	case protocol.MethodExecApprovalClosed:
		var n protocol.ExecApprovalClosed
		if err := unmarshal(method, params, &n); err != nil {
			return err
		}
		l.asked.Closed(&n)
	case protocol.MethodExecDecision:
		var d protocol.ExecDecision
		if err := unmarshal(method, params, &d); err != nil {
			return err
		}
		if decided := l.client.cfg.Approvals.Decided; decided != nil {
			decided(d)
		}
	case protocol.MethodSocketData:
		var n protocol.SocketData
		if err := unmarshal(method, params, &n); err != nil {
			return err
		}
		l.received(&n)
	case protocol.MethodFSChanged:
		var n protocol.ChangedNotification
		if err := unmarshal(method, params, &n); err != nil {
			return err
		}
		return l.changed(&n)
	case protocol.MethodPortChanged:
		var n protocol.PortChangedNotification
		if err := unmarshal(method, params, &n); err != nil {
			return err
		}
		l.portsChanged(&n)
	}
	return nil
}

// unmarshal reads params. Its error is not a *protocol.Error, which the peer
// would send to the server.
func unmarshal(method string, params json.RawMessage, into strictjson.Unmarshaler) error {
	if err := protocol.UnmarshalParams(params, into); err != nil {
		return protocolErrorf("notification %s: %v", method, err)
	}
	return nil
}

// deliver gives an event to its process, and drops the event of a process without a
// handle.
func (l *connection) deliver(ctx context.Context, id string, e Event) {
	c := l.client
	c.mu.Lock()
	p := c.processes[id]
	c.mu.Unlock()
	if p != nil && p.accept(ctx, e) {
		l.useful.Store(true)
	}
}
