package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
)

// patience is how long a test waits for what must come, before it fails.
const patience = 20 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is an agent under test and the connections to it.
type rig struct {
	t     testing.TB
	agent *Agent

	mu    sync.Mutex
	conns []rpc.Conn
	serve sync.WaitGroup
}

func newRig(t testing.TB, cfg Config) *rig {
	t.Helper()
	r := &rig{t: t, agent: New(cfg)}
	t.Cleanup(r.close)
	return r
}

func (r *rig) close() {
	r.mu.Lock()
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.mu.Unlock()
	r.serve.Wait()
	if err := r.agent.Close(); err != nil {
		r.t.Errorf("Agent.Close: %v", err)
	}
}

// dial opens a connection; the channel is closed when the agent has let go of
// it.
func (r *rig) dial() (rpc.Conn, <-chan struct{}) {
	ours, theirs := rpc.Pipe()
	served := make(chan struct{})
	r.mu.Lock()
	r.conns = append(r.conns, ours)
	r.mu.Unlock()
	r.serve.Go(func() {
		defer close(served)
		_ = r.agent.ServeConn(context.Background(), theirs) // how it ends is not the subject
	})
	return ours, served
}

// note is one notification.
type note struct {
	method  string
	id      string // of the process or HTTP request
	seq     uint64
	data    []byte
	exit    int
	watchID uint64
	done    bool
}

// client makes calls and keeps notifications, in order.
type client struct {
	t       testing.TB
	peer    *rpc.Peer
	served  <-chan struct{} // closed when the agent has let go
	session string
	ended   chan struct{}

	mu    sync.Mutex
	moved sync.Cond
	notes []note
	deaf  bool // reads nothing
	bytes int  // of output and bodies so far
	lossy bool // keeps no notes
}

func (r *rig) client() *client {
	conn, served := r.dial()
	c := &client{t: r.t, served: served, ended: make(chan struct{})}
	c.moved.L = &c.mu
	c.peer = rpc.NewPeer(conn, rpc.Config{Notification: c.take})
	r.serve.Go(func() {
		defer close(c.ended)
		_ = c.peer.Serve(context.Background())
	})
	return c
}

// attach is a client that has said hello, and resumed a session if one is
// named.
func (r *rig) attach(session string) *client {
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
		ProcessID, RequestID string
		Seq, WatchID         uint64
		Chunk, DeltaBase64   []byte
		ExitCode             int
		Done                 bool
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.deaf {
		c.moved.Wait()
	}
	n := note{method, p.ProcessID + p.RequestID, p.Seq, append(p.Chunk, p.DeltaBase64...), p.ExitCode, p.WatchID, p.Done}
	c.bytes += len(n.data)
	if !c.lossy || method != protocol.MethodProcessOutput {
		c.notes = append(c.notes, n)
	}
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

func waitFor(t testing.TB, done <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("waited %s for %s", patience, what)
	}
}

// object is the params of a call, written down in the test.
type object = map[string]any

// sh is the params of a start that runs a shell command in /.
func sh(id, command string) object {
	return object{
		"processId": id, "argv": []string{"/bin/sh", "-c", command}, "cwd": "file:///",
		"env": object{"PATH": "/usr/bin:/bin"}, "tty": false, "pipeStdin": true,
	}
}

func uri(path string) string { return protocol.FormatPathURI(path) }

// read is process/read with optional members as given.
func (c *client) read(id string, after uint64) *protocol.ReadResult {
	c.t.Helper()
	var r protocol.ReadResult
	c.must("process/read", object{"processId": id, "afterSeq": after}, &r)
	return &r
}

// pidOf is the process id of a process, by process/list.
func (c *client) pidOf(id string) int {
	c.t.Helper()
	var list protocol.ListResult
	c.must("process/list", nil, &list)
	for _, p := range list.Processes {
		if p.ProcessID == id {
			return p.PID
		}
	}
	c.t.Fatalf("process/list does not name %q", id)
	return 0
}

// eventually asks until the answer is yes: for what the kernel does in its
// own time and tells nobody.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s", what, patience)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// alive tells whether a process exists and is not a zombie.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	var state string
	for i := len(stat) - 1; i >= 0; i-- {
		if stat[i] == ')' {
			state = string(stat[i+2])
			break
		}
	}
	return state != "Z" && state != "X"
}

// wantCode fails unless err is a wire error of that code.
func wantCode(t testing.TB, what string, err error, code protocol.Code) {
	t.Helper()
	e, ok := err.(*protocol.Error)
	if !ok || e.Code != code {
		t.Errorf("%s: error %v, want code %d", what, err, code)
	}
}

// drain reads raw messages of a connection until it ends.
func drain(conn rpc.Conn) <-chan string {
	messages := make(chan string, 4096) // more than any test sends
	go func() {
		defer close(messages)
		for {
			data, err := conn.Read()
			if err != nil {
				return
			}
			messages <- string(data)
			rpc.Recycle(data)
		}
	}()
	return messages
}
