package agent

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/execagent/execagent/helper"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/sandbox"
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
	r := rigOf(t, New(cfg))
	hostOnce.Do(func() { hostProbed, hostJudges = r.agent.sandboxes.probed, r.agent.sandboxes.judges })
	r.agent.sandboxes.probed, r.agent.sandboxes.judges = hostProbed, hostJudges
	// A snapshot that takes too long is taken again, so startup files run more often.
	r.agent.snapshotTime = patience
	return r
}

func rigOf(t testing.TB, a *Agent) *harness {
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

func uri(path string) string { return protocol.FormatPathURI(path) }

// wantText fails unless err has a text with this part.
func wantText(t testing.TB, what string, err error, part string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), part) {
		t.Errorf("%s: error %.300v, want %q in it", what, err, part)
	}
}

// wantCode fails unless err is a wire error of that code.
func wantCode(t testing.TB, what string, err error, code protocol.Code) {
	t.Helper()
	e, ok := err.(*protocol.Error)
	if !ok || e.Code != code {
		t.Errorf("%s: error %v, want code %d", what, err, code)
	}
}
