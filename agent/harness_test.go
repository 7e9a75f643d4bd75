package agent

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/execagent/execagent/helper"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rawclient"
	"github.com/execagent/execagent/test/rig"
)

// patience is how long a test waits for what must come, before it fails. The
// machine may have much else to do.
const patience = 5 * time.Minute

// TestMain also runs the helpers that the agents under test start.
func TestMain(m *testing.M) {
	if code, ok := helper.Dispatch(os.Args); ok {
		os.Exit(code)
	}
	goleak.VerifyTestMain(m)
}

// harness is an agent under test and the connections to it.
type harness struct {
	t     testing.TB
	agent *Agent

	mu    sync.Mutex
	conns []rpc.Conn
	held  chan struct{} // nil, or what starts of fakes wait for
	serve sync.WaitGroup
}

// The first agent finds out for all others what this host can enforce.
var (
	hostOnce   sync.Once
	hostProbed func() sandbox.Host
	hostJudges func() bool
)

func newHarness(t testing.TB, cfg Config) *harness {
	t.Helper()
	cfg.Confines = true // see TestMain
	r := harnessOf(t, New(cfg))
	hostOnce.Do(func() { hostProbed, hostJudges = r.agent.sandboxes.probed, r.agent.sandboxes.judges })
	r.agent.sandboxes.probed, r.agent.sandboxes.judges = hostProbed, hostJudges
	// A snapshot that takes too long is taken again, so startup files run more often.
	r.agent.snapshotTime = patience
	return r
}

func harnessOf(t testing.TB, a *Agent) *harness {
	r := &harness{t: t, agent: a}
	t.Cleanup(r.close)
	return r
}

func (r *harness) close() {
	r.mu.Lock()
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.mu.Unlock()
	r.serve.Wait()
	rig.Check(r.t, r.agent.Close())
}

// dial opens a connection. The channel is closed when the agent is done with
// it.
func (r *harness) dial() (rpc.Conn, <-chan struct{}) {
	ours, theirs := rpc.Pipe()
	return ours, r.accept(ours, theirs)
}

// accept has the agent serve its end of a connection.
func (r *harness) accept(ours, theirs rpc.Conn) <-chan struct{} {
	served := make(chan struct{})
	r.mu.Lock()
	r.conns = append(r.conns, ours)
	r.mu.Unlock()
	r.serve.Go(func() {
		defer close(served)
		_ = r.agent.ServeConn(context.Background(), theirs) // the client sees how it ends
	})
	return served
}

// session returns the session of that id.
func (r *harness) session(id string) *Session {
	r.agent.mu.Lock()
	defer r.agent.mu.Unlock()
	return r.agent.sessions[id]
}

// process returns a process of a session, which must have started.
func (r *harness) process(session, id string) *process {
	r.t.Helper()
	s := r.session(session)
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.processes[id]
	if p == nil || p.proc == nil {
		r.t.Fatalf("session %s has no process %q", session, id)
	}
	return p
}

func waitFor(t testing.TB, done <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("waited %s for %s", patience, what)
	}
}

// object is a JSON object, such as the params of a call.
type object = map[string]any

// sh returns the params of a start that runs a shell command in /.
func sh(id, command string) object {
	return object{
		"processId": id, "argv": []string{"/bin/sh", "-c", command}, "cwd": "file:///",
		"env": object{"PATH": "/usr/bin:/bin"}, "tty": false, "pipeStdin": true,
	}
}

func uri(path string) string { return protocol.NewPathURI(path).String() }

// wantCode fails unless err is a wire error of that code.
func wantCode(t testing.TB, what string, err error, code protocol.Code) {
	t.Helper()
	e, ok := err.(*protocol.Error)
	if !ok || e.Code != code {
		t.Errorf("%s: error %v, want code %d", what, err, code)
	}
}

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
	harness *harness
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
	c := &client{t: r.t, harness: r, served: served, ended: make(chan struct{})}
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

// raw is a client that sends messages without waiting for their answers. Its
// methods fail the test on an error.
type raw struct {
	*rawclient.Client
	t *testing.T
}

func (r *harness) raw(t *testing.T) *raw {
	c, _, _ := r.opens(t, nil)
	return c
}

// opens returns a client that has sent initialize, with more params than it needs, the id of its
// session, and what loses its connection.
func (r *harness) opens(t *testing.T, more object) (c *raw, session string, lose func()) {
	t.Helper()
	conn, served := r.dial()
	c = &raw{rawclient.New(conn), t}
	params := object{"clientName": "raw"}
	maps.Copy(params, more)
	c.call("i", "initialize", params)
	m := c.next()
	if m.Error != nil {
		t.Fatal(m.Error)
	}
	var result struct{ SessionID string }
	rig.Must(t, json.Unmarshal(m.Result, &result))
	c.send(`{"method":"initialized"}`)
	return c, result.SessionID, func() {
		_ = conn.Close()
		waitFor(t, served, "the agent to let go of a connection")
	}
}

func (c *raw) send(format string, args ...any) {
	c.t.Helper()
	c.Sendf(c.t, format, args...)
}

func (c *raw) call(id any, method string, params object) {
	c.t.Helper()
	c.send("%s", rig.Value(json.Marshal(object{"id": id, "method": method, "params": params})))
}

// message has the members of any message of the server.
type message struct {
	ID     any
	Method string
	Error  *protocol.Error
	Result json.RawMessage
	Params struct {
		ProcessID string
		Seq       uint64
		Chunk     []byte
	}
}

func (c *raw) next() message {
	c.t.Helper()
	text := c.Next(c.t)
	var m message
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		c.t.Fatalf("%s: %v", text, err)
	}
	return m
}
