package agent

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
)

// note is one notification.
type note struct {
	method  string
	id      string // of the process, HTTP request or socket
	seq     uint64
	data    []byte
	exit    int
	watchID uint64
	done    bool
}

// client makes calls and keeps notifications, in order. It uses rpc.Peer, as the
// agent does, since tests of sessions are not about how a message looks. Tests that
// are about that use raw.
type client struct {
	t       testing.TB
	rig     *harness
	peer    *rpc.Peer
	served  <-chan struct{} // closed when the agent is done with the connection
	session string
	ended   chan struct{}

	mu    sync.Mutex
	moved sync.Cond
	notes []note
	deaf  bool // reads nothing
	bytes int  // of output and bodies so far
}

func (r *harness) client() *client { return r.clientOn(r.dial()) }

// clientOn returns a client on a connection that the agent serves.
func (r *harness) clientOn(conn rpc.Conn, served <-chan struct{}) *client {
	c := &client{t: r.t, rig: r, served: served, ended: make(chan struct{})}
	c.moved.L = &c.mu
	c.peer = rpc.NewPeer(conn, rpc.Config{Notification: c.take})
	r.serve.Go(func() {
		defer close(c.ended)
		_ = c.peer.Serve(context.Background())
	})
	return c
}

// attach returns a client after its handshake, which has resumed a session if
// one is named.
func (r *harness) attach(session string) *client {
	r.t.Helper()
	c := r.client()
	if err := c.hello(session); err != nil {
		r.t.Fatalf("initialize with session %q: %v", session, err)
	}
	return c
}

func (c *client) hello(session string) error {
	params := &protocol.InitializeParams{ClientName: "test"}
	if session != "" {
		params.ResumeSessionID = &session
	}
	var result struct{ SessionID string }
	if err := c.call("initialize", params, &result); err != nil {
		return err
	}
	c.session = result.SessionID
	return c.peer.Notify("initialized", nil)
}

func (c *client) take(_ context.Context, method string, raw json.RawMessage) error {
	var p struct {
		ProcessID, RequestID, SocketID string
		Seq, WatchID                   uint64
		Chunk, DeltaBase64             []byte
		ExitCode                       int
		Done                           bool
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.deaf {
		c.moved.Wait()
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return err
	}
	n := note{method, p.ProcessID + p.RequestID + p.SocketID, p.Seq, append(p.Chunk, p.DeltaBase64...), p.ExitCode, p.WatchID, p.Done}
	c.bytes += len(n.data)
	c.notes = append(c.notes, n)
	c.moved.Broadcast()
	return nil
}

// listen makes a client read or stop reading.
func (c *client) listen(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deaf = !on
	c.moved.Broadcast()
}

// await waits until the notes so far are enough.
func (c *client) await(what string, enough func([]note) bool) []note {
	c.t.Helper()
	late := false
	timer := time.AfterFunc(patience, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		late = true
		c.moved.Broadcast()
	})
	defer timer.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for !enough(c.notes) {
		if late {
			c.t.Fatalf("no %s within %s; %d notifications", what, patience, len(c.notes))
		}
		c.moved.Wait()
	}
	return append([]note(nil), c.notes...)
}

// awaitNote waits for the first notification of a method about an id.
func (c *client) awaitNote(method, id string) note {
	c.t.Helper()
	var found note
	c.await(method+" of "+id, func(notes []note) bool {
		for _, n := range notes {
			if n.method == method && n.id == id {
				found = n
				return true
			}
		}
		return false
	})
	return found
}

func (c *client) call(method string, params, result any) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return c.peer.Call(ctx, method, params, result)
}

// must calls and fails the test on an error.
func (c *client) must(method string, params, result any) {
	c.t.Helper()
	if err := c.call(method, params, result); err != nil {
		c.t.Fatalf("%s: %v", method, err)
	}
}

// drop loses the connection and waits until the agent has noticed.
func (c *client) drop() {
	c.t.Helper()
	c.listen(true)
	c.peer.Close()
	waitFor(c.t, c.served, "the agent to let go of a connection")
}

// read calls process/read.
func (c *client) read(id string, after uint64) *protocol.ReadResult {
	c.t.Helper()
	var r protocol.ReadResult
	c.must("process/read", object{"processId": id, "afterSeq": after}, &r)
	return &r
}
