package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

// TestDetachWhileReading loses a connection while a process/read waits on it:
// the session can be resumed at once (rpc.md 3.3).
func TestDetachWhileReading(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{}, func(t *testing.T, r *harness) {
		a := r.attach("")
		p := a.starts("p")
		waiting := a.later("process/read", object{"processId": "p", "waitMs": uint64(600_000)})
		synctest.Wait()
		a.drop()
		rig.Is(t, (<-waiting).err != nil, true, "a read on a lost connection fails")
		b := r.attach(a.session)
		p.prints("back\n")
		got := b.awaitNote("process/output", "p")
		rig.Is(t, fmt.Sprintf("%d %s", got.seq, got.data), "1 back\n", "output after the resume")
	})
}

// TestTooManyReads: of one connection so many reads may wait; the next one is refused.
func TestTooManyReads(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{}, func(t *testing.T, r *harness) {
		a := r.attach("")
		p := a.starts("p")
		read := object{"processId": "p", "waitMs": 600_000}
		var waiting []<-chan reply
		for range 1024 {
			waiting = append(waiting, a.later("process/read", read))
		}
		synctest.Wait()
		wantCode(t, "one more", a.call("process/read", read, nil), protocol.CodeInvalidRequest)
		p.prints("x")
		for _, done := range waiting {
			rig.Must(t, (<-done).err)
		}
	})
}

// family starts a process that has a child, and another whose leader exits and leaves one. It
// returns what ends with the last of their processes.
func family(t *testing.T, c *client) (ended <-chan struct{}) {
	t.Helper()
	fifo := filepath.Join(t.TempDir(), "held")
	rig.Must(t, syscall.Mkfifo(fifo, 0o600))
	c.must("process/start", sh("both", "exec 3>"+fifo+"; sleep 600 & echo; wait"), nil)
	c.must("process/start", sh("left", "exec 3>"+fifo+"; sleep 600 <&- >&- 2>&- & echo"), nil)
	held := rig.Value(os.OpenFile(fifo, os.O_RDONLY, 0))
	c.awaitNote("process/output", "both")
	c.awaitNote("process/closed", "left")
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, held) // to the end of all that hold the other end
		_ = held.Close()
	}()
	return done
}

// TestSessionEndsProcesses: the end of a session kills all of its process groups, also what a
// leader has left behind.
func TestSessionEndsProcesses(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(r *harness, c *client){
		"expired": func(r *harness, c *client) {
			s := r.session(c.session)
			c.drop()
			r.agent.expire(s, 1)
		},
		"agent closed": func(r *harness, _ *client) { _ = r.agent.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newHarness(t, Config{})
			c := r.attach("")
			ended := family(t, c)
			select {
			case <-ended:
				t.Fatal("the processes have ended before their session")
			default:
			}
			end(r, c)
			waitFor(t, ended, "the end of every process group")
		})
	}
}

// TestAgentClose: Close ends the processes of attached and of detached sessions, and no session
// is made any more.
func TestAgentClose(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{}, func(t *testing.T, r *harness) {
		a, b := r.attach(""), r.attach("")
		p, q := a.starts("p"), b.starts("q")
		b.drop()
		rig.Must(t, r.agent.Close())
		rig.Is(t, p.runs() || q.runs(), false, "a process runs")
		wantCode(t, "initialize after Close", r.client().hello(""), protocol.CodeInvalidRequest)
	})
}

// TestExpiry: a session ends when it was detached for its time, and nobody can resume it (rpc.md
// 3.3). One that is resumed before lives on, and the timer of its first loss does not end it.
func TestExpiry(t *testing.T) {
	t.Parallel()
	const ttl = time.Minute
	inBubble(t, Config{SessionTTL: ttl}, func(t *testing.T, r *harness) {
		a := r.attach("")
		p := a.starts("p")
		a.drop()
		time.Sleep(ttl - time.Second)
		b := r.attach(a.session)
		time.Sleep(2 * ttl)
		b.drop()
		r.agent.expire(r.session(a.session), 1) // a timer that was stopped too late
		time.Sleep(ttl - time.Second)
		synctest.Wait()
		rig.Is(t, p.runs() && r.session(a.session) != nil, true, "it lives until its time")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		rig.Is(t, p.runs(), false, "the process of an expired session runs")
		c := r.client()
		wantCode(t, "resume of an expired session", c.hello(a.session), protocol.CodeInvalidRequest)
		rig.Check(t, c.hello(""))
	})
}

// known is a connection of which the agent knows who is at the other end, and by whose right. It
// may end because that right is lost.
type known struct {
	rpc.Conn
	principal, holder string
	revoked           bool
}

func (c known) Principal() string { return c.principal }
func (c known) Holder() string    { return c.holder }

func (c known) Read() ([]byte, error) {
	message, err := c.Conn.Read()
	if err != nil && c.revoked {
		err = rpc.ErrRevoked
	}
	return message, err
}

// by returns a client of such a connection, before its handshake.
func (r *harness) by(who known) *client {
	ours, theirs := rpc.Pipe()
	who.Conn = theirs
	return r.clientOn(ours, r.accept(ours, who))
}

// TestRevoked: a client that may not come back loses its session at once, and
// all of its commands with it, unless the agent is told to keep such sessions.
func TestRevoked(t *testing.T) {
	t.Parallel()
	for _, keep := range []bool{false, true} {
		inBubble(t, Config{KeepRevoked: keep}, func(t *testing.T, r *harness) {
			other := r.attach("").starts("p")
			a := r.by(known{revoked: true})
			rig.Must(t, a.hello(""))
			p := a.starts("p")
			a.drop()
			synctest.Wait()
			rig.Is(t, p.runs(), keep, "keep %v: the process runs", keep)
			rig.Is(t, other.runs(), true, "keep %v: that of another session runs", keep)
			rig.Is(t, r.client().hello(a.session) == nil, keep, "keep %v: the session can be resumed", keep)
		})
	}
}

// TestRevokedHolder: what a holder has left running ends when its right is revoked, in
// sessions with a name and without a client, too, and in one that another holder has made.
// Those of others go on.
func TestRevokedHolder(t *testing.T) {
	t.Parallel()
	for _, keep := range []bool{false, true} {
		inBubble(t, Config{KeepRevoked: keep}, func(t *testing.T, r *harness) {
			running := map[string]*fake{}
			for _, s := range []struct{ name, maker, starter string }{
				{"left", "bad", "bad"}, {"guest", "good", "bad"}, {"other", "good", "good"}, {"unknown", "", ""},
			} {
				c := r.by(known{holder: s.maker}).named(s.name, protocol.InitializeParams{})
				if s.starter != s.maker {
					c.drop()
					c = r.by(known{holder: s.starter}).named(s.name, protocol.InitializeParams{Existing: true, Take: true})
				}
				running[s.name] = c.starts("p")
				c.drop()
			}
			rig.Is(t, len(r.agent.Holders()), 2, "holders have something")
			r.agent.Revoke("nobody")
			r.agent.Revoke("bad")
			synctest.Wait()
			names := map[string]bool{}
			for _, s := range r.by(known{holder: "good"}).named("new", protocol.InitializeParams{}).sessions() {
				names[s.Name] = true
			}
			for name, p := range running {
				want := keep || name == "other" || name == "unknown"
				rig.Is(t, names[name], want, "keep %v: session %s is there", keep, name)
				rig.Is(t, p.runs(), want, "keep %v: the process of session %s runs", keep, name)
			}
		})
	}
}

// TestEndedProcess: an ended process is known for the TTL. Then its id is free,
// and what is left of its group is killed (rpc.md 4.8).
func TestEndedProcess(t *testing.T) {
	t.Parallel()
	const ttl = time.Minute
	inBubble(t, Config{SessionTTL: ttl}, func(t *testing.T, r *harness) {
		c := r.attach("")
		p := c.starts("p")
		p.exit(0)
		time.Sleep(ttl - time.Second)
		if got := c.read("p", 0); !got.Closed || got.ExitCode == nil || *got.ExitCode != 0 {
			t.Errorf("read of an ended process: %+v, want it closed with exit code 0", got)
		}
		wantCode(t, "start of an id that is kept", c.call("process/start", sh("p", ""), nil), protocol.CodeInvalidRequest)
		rig.Is(t, p.closes(), false, "its group is ended before it is forgotten")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		rig.Is(t, p.closes(), true, "its group is ended")
		wantCode(t, "read of a forgotten process", c.call("process/read", object{"processId": "p"}, nil), protocol.CodeInvalidRequest)
		c.starts("p")
	})
}

// TestForgetUnderLoad ends sessions while their processes end, over and over:
// nothing stays in the agent's list of ended processes.
func TestForgetUnderLoad(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{SessionTTL: time.Millisecond}, func(t *testing.T, r *harness) {
		for range 30 {
			c := r.attach("")
			for i := range 4 {
				go c.starts(fmt.Sprint(i)).exit(0)
			}
			c.drop()
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		rig.Is(t, len(r.agent.sessions), 0, "sessions that are left")
		rig.Is(t, r.agent.ended.Len(), 0, "ended processes that are left")
	})
}

// TestSlowClient: the process of a client that does not read stands still, another client notices
// nothing, and nothing is lost once the slow one reads on (rpc.md 4.8). If its connection is lost
// instead, the process goes on.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		inBubble(t, Config{}, func(t *testing.T, r *harness) {
			slow, other := r.attach(""), r.attach("")
			slow.listen(false)
			p := slow.starts("p")
			const words = 100
			go func() {
				for range words {
					p.prints("word ")
				}
				p.exit(0)
			}()
			slow.standsStill("p")
			for range 300 {
				other.must("fs/getMetadata", object{"path": "file:///"}, nil)
			}
			other.starts("q").exit(0)
			other.awaitNote("process/closed", "q")
			slow.standsStill("p")
			if lost {
				slow.drop()
				synctest.Wait()
				got := r.attach(slow.session).read("p", 0)
				rig.Is(t, len(got.Chunks) == words && got.Closed, true, "%d words, closed: %v", len(got.Chunks), got.Closed)
				return
			}
			slow.listen(true)
			if end := slow.awaitNote("process/closed", "p"); slow.bytes != words*len("word ") || end.seq != words+2 {
				t.Errorf("a client that paused got %d bytes and then event %d", slow.bytes, end.seq)
			}
		})
	}
}

// standsStill fails the test unless a process waits for c: the first event has reached the client,
// and the second is being sent.
func (c *client) standsStill(id string) {
	c.t.Helper()
	synctest.Wait()
	if _, _, _, next := c.harness.process(c.session, id).State(); next != 3 {
		c.t.Fatalf("the process has gone on to event %d", next)
	}
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

// reply is how a call ended.
type reply struct {
	err    error
	result object
}

// loseStart begins to start a process, which the caller holds, loses the connection and resumes the
// session on another one.
func (r *harness) loseStart(start object) *client {
	r.t.Helper()
	a := r.attach("")
	lost := a.later("process/start", start)
	synctest.Wait()
	a.peer.Close()
	rig.Is(r.t, (<-lost).err != nil, true, "a start that is held is not answered")
	synctest.Wait()
	return r.attach(a.session)
}

// TestStartUnderWay resumes a session while a start is under way: every request
// about that process waits for it, and no other does.
func TestStartUnderWay(t *testing.T) {
	t.Parallel()
	named := func(name string, value any) object { return object{"processId": "p", name: value} }
	for _, tt := range []struct {
		method string
		params object
		code   protocol.Code // 0: it succeeds
		result string
	}{
		{"process/read", named("afterSeq", 0), 0, "exited:false"},
		{"process/write", object{"processId": "p", "writeId": "1", "chunk": []byte("x")}, 0, "status:accepted"},
		{"process/closeStdin", object{"processId": "p"}, 0, "status:accepted"},
		{"process/resize", object{"processId": "p", "rows": 1, "cols": 1}, protocol.CodeInvalidParams, ""},
		{"process/signal", named("signal", "user1"), 0, ""},
		{"process/terminate", object{"processId": "p"}, 0, "running:true"},
		{"process/start", sh("p", ""), protocol.CodeInvalidRequest, ""},
		{"process/start", startOf("p", "1"), 0, "processId:p"},
		{"process/list", object{}, 0, "processId:p"},
	} {
		inBubble(t, Config{}, func(t *testing.T, r *harness) {
			release := r.holdStarts()
			c := r.loseStart(startOf("p", "1"))
			done := c.later(tt.method, tt.params)
			c.must("fs/getMetadata", object{"path": "file:///"}, nil)
			synctest.Wait()
			if len(done) > 0 {
				t.Fatalf("%s was answered while the start is under way: %v", tt.method, <-done)
			}
			release()
			got := <-done
			if tt.code != 0 {
				wantCode(t, tt.method, got.err, tt.code)
			} else if text := fmt.Sprint(got.result); got.err != nil || !strings.Contains(text, tt.result) {
				t.Errorf("%s: %s, %v, want %s", tt.method, text, got.err, tt.result)
			}
			synctest.Wait()
			p := r.process(c.session, "p").proc.(*fake)
			input, signals := p.heard()
			if input != "" && tt.method != "process/write" || (len(signals) == 1) != (tt.method == "process/signal") || p.runs() == (tt.method == "process/terminate") {
				t.Errorf("%s: the process has heard %q and %v, and runs: %v", tt.method, input, signals, p.runs())
			}
		})
	}
}

// startOf is a start with an id of its own.
func startOf(id, startID string) object {
	start := sh(id, "")
	start["startId"] = startID
	return start
}

// TestForgottenStart: the command of a start that comes again does not run again after its process was forgotten. The
// newest of such starts are remembered.
func TestForgottenStart(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{}, func(t *testing.T, r *harness) {
		c := r.attach("")
		for i := range maxPast + 1 {
			c.must("process/start", startOf("p", fmt.Sprint(i)), nil)
			r.process(c.session, "p").proc.(*fake).exit(0)
			time.Sleep(2 * DefaultSessionTTL)
		}
		for _, i := range []int{1, maxPast} {
			refused, _ := errors.AsType[*protocol.Error](c.call("process/start", startOf("p", fmt.Sprint(i)), nil))
			rig.Is(t, refused != nil && refused.Reason() == protocol.ReasonForgotten, true, "start %d again: %v", i, refused)
		}
		c.must("process/start", startOf("p", "0"), nil)
	})
}

// TestTerminateUnderWay sends a terminate during a start and loses its
// connection, too: the process is killed all the same.
func TestTerminateUnderWay(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{}, func(t *testing.T, r *harness) {
		release := r.holdStarts()
		b := r.loseStart(sh("p", ""))
		b.later("process/terminate", object{"processId": "p"})
		synctest.Wait()
		b.drop()
		c := r.attach(b.session)
		release()
		var read protocol.ReadResult
		c.must("process/read", object{"processId": "p", "exitOnly": true, "waitMs": 10_000}, &read)
		rig.Is(t, read.ExitCode != nil && *read.ExitCode == 137, true, "read %+v, want exit code 137", read)
	})
}

// TestStartThatFails repeats a start while the first one is under way. The
// first one fails, and the second one starts the process.
func TestStartThatFails(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{}, func(t *testing.T, r *harness) {
		release := r.holdStarts()
		c := r.loseStart(sh("p", noProgram))
		again := c.later("process/start", sh("p", ""))
		synctest.Wait()
		rig.Is(t, len(again), 0, "answers while the first start is under way")
		release()
		got := <-again
		rig.Is(t, got.err == nil && !c.read("p", 0).Exited, true, "the repeated start: %v", got.err)
	})
}

// TestLateStart has a start wait for its turn until its connection is lost. It
// must not run any more: the client may be back, and have been told that there
// is no such process.
func TestLateStart(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{ConcurrentRequests: 1}, func(t *testing.T, r *harness) {
		release := r.holdStarts()
		a := r.attach("")
		first, second := a.later("process/start", sh("p", "")), a.later("process/start", sh("q", ""))
		synctest.Wait()
		a.peer.Close()
		<-first
		<-second
		c := r.attach(a.session)
		release()
		waitFor(t, a.served, "the agent to let go of the lost connection")
		var list protocol.ListResult
		c.must("process/list", object{}, &list)
		if len(list.Processes) != 1 || list.Processes[0].Exited {
			t.Errorf("%+v, want the process whose start was under way", list)
		}
	})
}
