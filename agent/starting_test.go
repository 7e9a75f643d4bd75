package agent

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rawclient"
)

// holdStarts keeps this program from executing anything until release is
// called, so that starts stay under way. A test that calls it must not be
// parallel.
func holdStarts(t *testing.T) (release func()) {
	syscall.ForkLock.RLock()
	release = sync.OnceFunc(syscall.ForkLock.RUnlock)
	t.Cleanup(release)
	return release
}

// loseStart begins to start a process, loses the connection and resumes the
// session on another one. The start is still under way.
func loseStart(t *testing.T, r *rig, start object) *client {
	t.Helper()
	a := r.attach("")
	lost := make(chan error, 1)
	go func() { lost <- a.call("process/start", start, nil) }()
	r.starts(a.session)
	a.peer.Close()
	if err := <-lost; err == nil {
		t.Fatal("a start that is held was answered")
	}
	return r.comeBack(a.session)
}

// starts returns once a start is under way in a session.
func (r *rig) starts(session string) {
	r.t.Helper()
	s := r.session(session)
	eventually(r.t, "the start is under way", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, p := range s.processes {
			return p.Process == nil
		}
		return false
	})
}

// comeBack resumes a session whose connection is being lost.
func (r *rig) comeBack(session string) (c *client) {
	r.t.Helper()
	eventually(r.t, "the session can be resumed", func() bool {
		c = r.client()
		return c.hello(session) == nil
	})
	return c
}

// reply is how a call ended.
type reply struct {
	err    error
	result object
}

// later makes a call and returns at once; the reply comes on the channel.
func (c *client) later(method string, params object) <-chan reply {
	done := make(chan reply, 1)
	go func() {
		var o reply
		o.err = c.call(method, params, &o.result)
		done <- o
	}()
	return done
}

// TestStartUnderWay resumes a session while a start is under way: every request
// about that process waits for it, and no other does.
func TestStartUnderWay(t *testing.T) {
	start := sh("p", "exec sleep 600")
	named := func(more object) object {
		params := object{"processId": "p"}
		maps.Copy(params, more)
		return params
	}
	requests := []struct {
		method string
		params object
		code   protocol.Code // 0: it succeeds
		member string        // of the result
		want   any
		kills  int // exit code, if it does
	}{
		{"process/read", named(nil), 0, "exited", false, 0},
		{"process/write", named(object{"writeId": "1", "chunk": []byte("x")}), 0, "status", "accepted", 0},
		{"process/closeStdin", named(nil), 0, "status", "accepted", 0},
		{"process/resize", named(object{"rows": 1, "cols": 1}), protocol.CodeInvalidParams, "", nil, 0},
		{"process/signal", named(object{"signal": "user1"}), 0, "", nil, 138},
		{"process/terminate", named(nil), 0, "running", true, 137},
		{"process/start", start, protocol.CodeInvalidRequest, "", nil, 0},
	}
	for _, tt := range requests {
		t.Run(tt.method, func(t *testing.T) {
			r := newRig(t, Config{})
			release := holdStarts(t)
			c := loseStart(t, r, start)
			done := c.later(tt.method, tt.params)
			c.stillWaits(done)
			release()
			got := <-done
			if tt.code != 0 {
				wantCode(t, tt.method, got.err, tt.code)
			} else if got.err != nil || tt.member != "" && got.result[tt.member] != tt.want {
				t.Errorf("%v, %v, want %s %v", got.result, got.err, tt.member, tt.want)
			}
			if tt.kills != 0 {
				if code := c.exitCode("p"); code != tt.kills {
					t.Errorf("exit code %d, want %d", code, tt.kills)
				}
			} else if got := c.read("p", 0); got.Exited {
				t.Error("the process does not run")
			}
		})
	}
	t.Run("process/list", func(t *testing.T) {
		r := newRig(t, Config{})
		release := holdStarts(t)
		c := loseStart(t, r, start)
		done := c.later("process/list", object{})
		c.stillWaits(done)
		release()
		if got := <-done; got.err != nil || len(got.result["processes"].([]any)) != 1 {
			t.Errorf("%v, %v, want one process", got.result, got.err)
		}
	})
}

// stillWaits makes a number of calls and waits for their answers. It fails the test
// if the earlier call of done has been answered meanwhile.
func (c *client) stillWaits(done <-chan reply) {
	c.t.Helper()
	for range 200 {
		c.must("fs/getMetadata", object{"path": "file:///"}, nil)
	}
	select {
	case got := <-done:
		c.t.Fatalf("answered while the start is under way: %v, %v", got.result, got.err)
	default:
	}
}

// exitCode waits for the end of a process.
func (c *client) exitCode(id string) int {
	c.t.Helper()
	for after := uint64(0); ; {
		var r protocol.ReadResult
		c.must("process/read", object{"processId": id, "afterSeq": after, "waitMs": 10_000}, &r)
		if r.Closed {
			return *r.ExitCode
		}
		after = r.NextSeq - 1
	}
}

// TestTerminateUnderWay sends a terminate during a start and loses its
// connection, too: the process is killed all the same.
func TestTerminateUnderWay(t *testing.T) {
	for name, sandbox := range map[string]object{"": nil, "with a sandbox": newBox(t).readOnly()} {
		t.Run(name, func(t *testing.T) {
			start := sh("p", "exec sleep 600")
			if sandbox != nil {
				// The start is held where the agent looks at what the host can
				// do, before it executes anything.
				start["sandbox"] = sandbox
			}
			r := newRig(t, Config{})
			release := holdStarts(t)
			b := loseStart(t, r, start)
			b.later("process/terminate", object{"processId": "p"})
			s := r.session(b.session)
			eventually(t, "the terminate is under way", func() bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				return s.processes["p"].doomed
			})
			b.peer.Close()
			c := r.comeBack(b.session)
			release()
			if code := c.exitCode("p"); code != 137 {
				t.Errorf("exit code %d, want 137", code)
			}
		})
	}
}

// TestStartThatFails repeats a start while the first one is under way. The
// first one fails, and the second one starts the process.
func TestStartThatFails(t *testing.T) {
	notExecutable := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(notExecutable, []byte("\x7fELF"), 0o755); err != nil {
		t.Fatal(err)
	}
	first := sh("p", "")
	first["argv"] = []string{notExecutable}
	r := newRig(t, Config{})
	release := holdStarts(t)
	c := loseStart(t, r, first)
	again := c.later("process/start", sh("p", "exec sleep 600"))
	c.stillWaits(again)
	release()
	if got := <-again; got.err != nil {
		t.Errorf("the repeated start: %v", got.err)
	}
	if got := c.read("p", 0); got.Exited {
		t.Errorf("read %+v, want a process that runs", got)
	}
}

// TestLateStart has a start wait for its turn until its connection is lost. It
// must not run any more: the client may be back, and have been told that there
// is no such process.
func TestLateStart(t *testing.T) {
	r := newRig(t, Config{ConcurrentRequests: 1})
	release := holdStarts(t)
	conn, served := r.dial()
	a := &raw{rawclient.New(conn), t}
	a.send(`{"id":"i","method":"initialize","params":{"clientName":"raw"}}`)
	var hello struct{ SessionID string }
	if err := json.Unmarshal(a.next().Result, &hello); err != nil {
		t.Fatal(err)
	}
	a.send(`{"method":"initialized"}`)
	a.call(1, "process/start", sh("p", "exec sleep 600"))
	a.call(2, "process/start", sh("q", "exec sleep 600"))
	r.starts(hello.SessionID)
	_ = conn.Close()
	c := r.comeBack(hello.SessionID)
	release()
	waitFor(t, served, "the agent to let go of the lost connection")
	if got := c.read("p", 0); got.Exited {
		t.Error("the process whose start was under way does not run")
	}
	wantCode(t, "read of what must not start", c.call("process/read", object{"processId": "q"}, nil), protocol.CodeInvalidRequest)
}
