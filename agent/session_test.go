package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
)

// TestDetachWhileReading loses a connection while a process/read waits on it:
// the session can be resumed at once (rpc.md 3.3).
func TestDetachWhileReading(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	a := r.attach("")
	a.must("process/start", sh("p", "read x; echo $x"), nil)
	waiting := make(chan error, 1)
	go func() {
		waiting <- a.call("process/read", object{"processId": "p", "waitMs": uint64(600_000)}, nil)
	}()
	// An answer to a later request shows that the read waits.
	a.must("process/write", object{"processId": "p", "writeId": "0", "chunk": ""}, nil)
	a.drop()
	if err := <-waiting; err == nil {
		t.Error("a read on a lost connection was answered")
	}

	b := r.attach(a.session)
	b.must("process/write", object{"processId": "p", "writeId": "1", "chunk": []byte("back\n")}, nil)
	if got := b.awaitNote("process/output", "p"); string(got.data) != "back\n" || got.seq != 1 {
		t.Errorf("after the resume: output %q with seq %d, want %q with 1", got.data, got.seq, "back\n")
	}
}

// TestMissedOutput: a session without a connection keeps output for
// process/read, and notifications go on with the next number.
func TestMissedOutput(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	a := r.attach("")
	gate := filepath.Join(t.TempDir(), "gate")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	a.must("process/start", sh("p", "echo one; read x <"+gate+"; echo two; read x; echo three"), nil)
	a.awaitNote("process/output", "p")
	a.drop()
	if err := os.WriteFile(gate, []byte("\n"), 0); err != nil {
		t.Fatal(err)
	}
	p := r.process(a.session, "p")
	eventually(t, "the process goes on without a client", func() bool {
		_, _, _, next := p.State()
		return next == 3
	})

	b := r.attach(a.session)
	var missed protocol.ReadResult
	b.must("process/read", object{"processId": "p", "afterSeq": 1, "waitMs": 10_000}, &missed)
	if len(missed.Chunks) != 1 || string(missed.Chunks[0].Chunk) != "two\n" || missed.Chunks[0].Seq != 2 {
		t.Fatalf("missed chunks %+v, want one, \"two\\n\" with seq 2", missed.Chunks)
	}
	b.must("process/write", object{"processId": "p", "writeId": "2", "chunk": []byte("\n")}, nil)
	b.awaitNote("process/closed", "p")
	notes := b.await("three notifications", func(n []note) bool { return len(n) >= 3 })
	if len(notes) != 3 || string(notes[0].data) != "three\n" || notes[0].seq != 3 {
		t.Errorf("after the resume: notifications %+v, want output \"three\\n\" with seq 3, exited, closed", notes)
	}
}

// family starts a process whose leader and child write their pids to a file,
// and returns them.
func family(t *testing.T, c *client, id, command string) (pids []int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pids")
	c.must("process/start", sh(id, strings.ReplaceAll(command, "PIDS", file)), nil)
	eventually(t, "two pids", func() bool {
		data, _ := os.ReadFile(file)
		pids = nil
		for word := range strings.FieldsSeq(string(data)) {
			pid, err := strconv.Atoi(word)
			if err != nil {
				return false
			}
			pids = append(pids, pid)
		}
		return len(pids) == 2
	})
	return pids
}

// both is the command of a leader and a child that both live on.
const both = "sleep 600 & echo $$ $! >PIDS; wait"

// left is the command of a leader that exits and leaves a child, which has
// closed the pipes.
const left = "sleep 600 <&- >&- 2>&- & echo $$ $! >PIDS"

func gone(pids []int) func() bool {
	return func() bool {
		return !slices.ContainsFunc(pids, alive)
	}
}

// TestExpiry lets a detached session end: all of its process groups are killed,
// also what a leader left behind, and nobody can resume it (rpc.md 3.3).
func TestExpiry(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{SessionTTL: 300 * time.Millisecond})
	a := r.attach("")
	pids := family(t, a, "both", both)
	pids = append(pids, family(t, a, "left", left)[1])
	a.drop()
	eventually(t, "the groups of an expired session are killed", gone(pids))
	b := r.client()
	wantCode(t, "resume of an expired session", b.hello(a.session), protocol.CodeInvalidRequest)
	if err := b.hello(""); err != nil {
		t.Errorf("initialize after a refused resume: %v", err)
	}
}

// revocable is a connection that ends because its client has lost the right to
// it.
type revocable struct{ rpc.Conn }

func (c revocable) Read() ([]byte, error) {
	message, err := c.Conn.Read()
	if err != nil {
		err = rpc.ErrRevoked
	}
	return message, err
}

// TestRevoked: a client that may not come back loses its session at once, and
// all of its commands with it, unless the agent is told to keep such sessions.
func TestRevoked(t *testing.T) {
	t.Parallel()
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprint("keep ", keep), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Config{KeepRevoked: keep})
			innocent := r.attach("")
			others := family(t, innocent, "both", both)
			ours, theirs := rpc.Pipe()
			a := r.clientOn(ours, r.accept(ours, revocable{theirs}))
			if err := a.hello(""); err != nil {
				t.Fatal(err)
			}
			pids := family(t, a, "both", both)
			pids = append(pids, family(t, a, "left", left)[1])
			a.drop()
			b := r.client()
			if keep {
				if err := b.hello(a.session); err != nil {
					t.Errorf("resume: %v", err)
				}
				if gone(pids)() {
					t.Error("the commands were killed")
				}
			} else {
				wantCode(t, "resume of a revoked session", b.hello(a.session), protocol.CodeInvalidRequest)
				eventually(t, "the groups of a revoked session are killed", gone(pids))
			}
			for _, pid := range others {
				if !alive(pid) {
					t.Error("commands of another session were killed")
				}
			}
		})
	}
}

// TestResumeStopsExpiry: a session that is resumed within the TTL outlives it.
func TestResumeStopsExpiry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ttl = time.Minute
		a := New(Config{SessionTTL: ttl})
		defer a.Close()
		first, second := &connection{}, &connection{}
		s, _, err := a.open(first, opening{})
		if err != nil {
			t.Fatal(err)
		}
		s.detach(first)
		time.Sleep(ttl - time.Second)
		if _, err := a.resume(s.id, second, opening{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * ttl)
		synctest.Wait()
		if s.ended || a.sessions[s.id] != s {
			t.Error("a resumed session has ended")
		}
		s.detach(second)
		time.Sleep(ttl + time.Second)
		synctest.Wait()
		if !s.ended || a.sessions[s.id] != nil {
			t.Error("a session that was lost again lives on")
		}
	})
}

// TestEndedProcess: an ended process is known for the TTL. Then its id is free,
// and what is left of its group is killed (rpc.md 4.8).
func TestEndedProcess(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{SessionTTL: time.Hour})
	c := r.attach("")
	pids := family(t, c, "p", left)
	c.awaitNote("process/closed", "p")
	if got := c.read("p", 0); !got.Closed || got.ExitCode == nil || *got.ExitCode != 0 {
		t.Errorf("read of an ended process: %+v, want it closed with exit code 0", got)
	}
	wantCode(t, "start of an id that is kept", c.call("process/start", sh("p", ":"), nil), protocol.CodeInvalidRequest)
	if !alive(pids[1]) {
		t.Error("the child that was left behind did not live until its process was forgotten")
	}
	p := r.process(c.session, "p")
	eventually(t, "an ended process has its time", func() bool {
		s := r.session(c.session)
		s.mu.Lock()
		defer s.mu.Unlock()
		return p.expiry != nil && p.expiry.Reset(0) // the hour is over
	})
	eventually(t, "what is left of the group is killed", gone(pids))
	eventually(t, "the id is free", func() bool {
		return c.call("process/read", object{"processId": "p"}, nil) != nil
	})
	wantCode(t, "read of a forgotten process", c.call("process/read", object{"processId": "p"}, nil), protocol.CodeInvalidRequest)
	c.must("process/start", sh("p", ":"), nil)
}

// TestIDsPerSession runs two sessions with the same process id: neither hears
// or reaches the other's (rpc.md 3.3).
func TestIDsPerSession(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	a, b := r.attach(""), r.attach("")
	if a.session == b.session {
		t.Fatalf("two connections share session %s", a.session)
	}
	a.must("process/start", sh("p", "read x; echo a$x"), nil)
	b.must("process/start", sh("p", "read x; echo b$x"), nil)
	a.must("process/write", object{"processId": "p", "writeId": "1", "chunk": []byte("1\n")}, nil)
	a.awaitNote("process/closed", "p")
	if got := b.read("p", 0); got.Exited || len(got.Chunks) != 0 {
		t.Errorf("a write to one session's process reached the other's: %+v", got)
	}
	b.must("process/write", object{"processId": "p", "writeId": "1", "chunk": []byte("2\n")}, nil)
	b.awaitNote("process/closed", "p")
	for c, want := range map[*client]string{a: "a1\n", b: "b2\n"} {
		notes := c.await("the end", func(n []note) bool { return len(n) >= 3 })
		if len(notes) != 3 || string(notes[0].data) != want {
			t.Errorf("notifications %+v, want three, the first with %q", notes, want)
		}
	}
}

// TestAgentClose: Close kills the processes of attached and of detached
// sessions, and what ended leaders left behind.
func TestAgentClose(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	a, b := r.attach(""), r.attach("")
	pids := family(t, a, "both", both)
	pids = append(pids, family(t, b, "both", both)...)
	pids = append(pids, family(t, b, "left", left)[1])
	b.drop()
	a.drop()
	if err := r.agent.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "Close kills every group", gone(pids))
	wantCode(t, "initialize after Close", r.client().hello(""), protocol.CodeInvalidRequest)
}

// TestForgetUnderLoad ends sessions while their processes end, over and over:
// nothing stays in the agent's list of ended processes.
func TestForgetUnderLoad(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{SessionTTL: time.Millisecond})
	for range 30 {
		c := r.attach("")
		for i := range 4 {
			c.must("process/start", sh(fmt.Sprint(i), ":"), nil)
		}
		c.drop()
	}
	eventually(t, "no session and no ended process is left", func() bool {
		r.agent.mu.Lock()
		defer r.agent.mu.Unlock()
		return len(r.agent.sessions) == 0 && len(r.agent.ended) == 0
	})
}
