package agent

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/internal/sockets"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
)

// of is a connection whose other end has proven who it is.
type of struct {
	rpc.Conn
	principal string
}

func (c of) Principal() string { return c.principal }

// by returns a client of a principal, before its handshake.
func (r *rig) by(principal string) *client {
	ours, theirs := rpc.Pipe()
	return r.clientOn(ours, r.accept(ours, of{theirs, principal}))
}

// opens is the handshake of a client that asks for a session of a name; "" is one without.
func (c *client) opens(name string, ask protocol.InitializeParams) (*protocol.OpenedSession, error) {
	ask.ClientName = "test"
	if name != "" {
		ask.SessionName = &name
	}
	var result protocol.InitializeResult
	if err := c.call("initialize", &ask, &result); err != nil {
		return nil, err
	}
	c.session = result.SessionID
	return result.Session, c.peer.Notify("initialized", nil)
}

// named is opens for a client that must succeed.
func (c *client) named(name string, ask protocol.InitializeParams) *client {
	c.t.Helper()
	if _, err := c.opens(name, ask); err != nil {
		c.t.Fatalf("session %s: %v", name, err)
	}
	return c
}

func (c *client) sessions() []protocol.ListedSession {
	c.t.Helper()
	var r protocol.SessionListResult
	c.must("session/list", object{}, &r)
	return r.Sessions
}

// TestNamesOfPrincipals: each principal has names of its own, and finds, resumes and looks into
// no session of another: it is told what it is told of an id that does not exist.
func TestNamesOfPrincipals(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	owners := []string{"uid:1000", "uid:1001", "sub:uid:1000", ""}
	var clients []*client
	for _, owner := range owners {
		c := r.by(owner).named("same", protocol.InitializeParams{})
		c.must("process/start", sh("p", "echo secret; read x"), nil)
		c.awaitNote("process/output", "p")
		clients = append(clients, c)
	}
	clients[1].drop()
	for i, c := range clients {
		if i == 1 {
			c = r.by(owners[1]).named("", protocol.InitializeParams{})
		}
		if all := c.sessions(); len(all) != 1 || all[0].SessionID != clients[i].session || all[0].Name != "same" {
			t.Errorf("%q is shown %+v", owners[i], all)
		}
		for j, other := range clients {
			if i == j {
				continue
			}
			for method, params := range map[string]object{
				"process/list": {}, "process/read": {"processId": "p"}, "process/read ": {"processId": "p", "exitOnly": true, "waitMs": 60_000},
				"process/signal": {"processId": "p", "signal": "kill"}, "process/terminate": {"processId": "p"}, "session/end": {},
			} {
				params["sessionId"] = other.session
				method = strings.TrimSpace(method)
				err := c.call(method, params, nil)
				if want := "unknown session id " + other.session; err == nil || err.Error() != protocol.InvalidRequest("%s", want).Error() {
					t.Errorf("%s by %q in the session of %q: %v", method, owners[i], owners[j], err)
				}
			}
			stranger := r.by(owners[i])
			wantCode(t, "resume", stranger.hello(other.session), protocol.CodeInvalidRequest)
			_, err := stranger.opens("", protocol.InitializeParams{ResumeSessionID: &other.session, Take: true})
			wantCode(t, "take", err, protocol.CodeInvalidRequest)
		}
	}
	for i, c := range clients {
		if s := r.session(c.session); s == nil || s.listed().Running != 1 {
			t.Errorf("the session of %q is harmed", owners[i])
		}
	}
	// A session without a name is for whoever knows its id, as it was before there were names.
	a := r.by("uid:1000").named("", protocol.InitializeParams{})
	a.drop()
	if err := r.by("uid:1001").hello(a.session); err != nil {
		t.Errorf("resume of a session without a name: %v", err)
	}
}

// TestNamedExpiry: a session with a name ends when its time without a client is over, and no
// sooner.
func TestNamedExpiry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := New(Config{SessionTTL: time.Minute, NamedSessionTTL: time.Hour})
		defer a.Close()
		gone := func(s *Session) bool {
			synctest.Wait()
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.sessions[s.id] == nil && a.named.find(s.principal, s.name) == nil
		}
		open := func(c *connection, o opening) *Session {
			t.Helper()
			s, _, err := a.open(c, o)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		first, second := &connection{}, &connection{}
		s := open(first, opening{name: "n"})
		time.Sleep(2 * time.Hour)
		if gone(s) {
			t.Fatal("it has ended under its client")
		}
		s.detach(first)
		if at := *s.listed().ExpiresAtMs; at != time.Now().Add(time.Hour).UnixMilli() {
			t.Errorf("it is said to end at %d", at)
		}
		time.Sleep(time.Hour - time.Second)
		if again := open(second, opening{name: "n", retain: new(2 * time.Hour)}); again != s || s.listed().ExpiresAtMs != nil {
			t.Fatal("the name has not opened the session")
		}
		time.Sleep(2 * time.Hour)
		s.detach(second)
		time.Sleep(time.Hour - time.Second)
		if gone(s) {
			t.Error("it has ended before its time")
		}
		time.Sleep(2 * time.Second)
		if !gone(s) {
			t.Error("it is there after the time that an operator allows")
		}
		// A client may ask for less, also for one without a name.
		for _, name := range []string{"m", ""} {
			s := open(first, opening{name: name, retain: new(time.Second)})
			s.detach(first)
			time.Sleep(900 * time.Millisecond)
			if gone(s) {
				t.Errorf("%q has ended before its time", name)
			}
			time.Sleep(200 * time.Millisecond)
			if !gone(s) {
				t.Errorf("%q is there after its time", name)
			}
			s = open(first, opening{name: name, retain: new(time.Duration(0))})
			s.detach(first)
			if !gone(s) {
				t.Errorf("%q is kept although nothing was to be kept", name)
			}
		}
	})
}

// TestNamedHeldByProcess: a running process holds a session with a name, and none without.
func TestNamedHeldByProcess(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{SessionTTL: time.Hour})
	none := protocol.InitializeParams{RetainMs: new(uint64(0))}
	a := r.client().named("n", none)
	pids := family(t, a, "p", both)
	a.drop()
	b := r.client().named("", none)
	others := family(t, b, "p", both)
	b.drop()
	eventually(t, "the commands of a session that is not to be kept end with its connection", gone(others))
	watcher := r.attach("")
	if all := watcher.sessions(); len(all) != 1 || all[0].Running != 1 || all[0].Attached || all[0].ExpiresAtMs != nil || gone(pids)() {
		t.Fatalf("while a process runs: %+v", all)
	}
	watcher.must("process/terminate", object{"sessionId": a.session, "processId": "p"}, nil)
	eventually(t, "the session ends with its last process", func() bool { return len(watcher.sessions()) == 0 })
	if !gone(pids)() {
		t.Error("a process has outlived its session")
	}
}

// TestNamedKeepsEnded: the ended processes of a session with a name are kept as long as the
// session, with their output and their exit code.
func TestNamedKeepsEnded(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{SessionTTL: time.Millisecond})
	a := r.client().named("n", protocol.InitializeParams{})
	a.must("process/start", sh("p", "echo out; exit 3"), nil)
	a.awaitNote("process/closed", "p")
	a.drop()
	// Those of a session without a name are forgotten meanwhile.
	b := r.attach("")
	b.must("process/start", sh("p", "exit 3"), nil)
	eventually(t, "an ended process is forgotten", func() bool { return b.call("process/read", object{"processId": "p"}, nil) != nil })
	var read protocol.ReadResult
	b.must("process/read", object{"sessionId": a.session, "processId": "p"}, &read)
	if len(read.Chunks) != 1 || string(read.Chunks[0].Chunk) != "out\n" || read.ExitCode == nil || *read.ExitCode != 3 {
		t.Errorf("what is kept is %+v", read)
	}
	if all := b.sessions(); len(all) != 1 || all[0].Ended != 1 || all[0].Running != 0 || all[0].ExpiresAtMs == nil {
		t.Errorf("the session is %+v", all)
	}
}

// TestNamedBounds: how many sessions with a name there may be, of one and of all.
func TestNamedBounds(t *testing.T) {
	t.Parallel()
	a := New(Config{})
	defer a.Close()
	var last *Session
	for owner := range maxNamed / maxNamedOfOne {
		c := &connection{principal: fmt.Sprint("uid:", owner)}
		for i := range maxNamedOfOne {
			s, created, err := a.open(c, opening{name: fmt.Sprint("n", i)})
			if err != nil || !created {
				t.Fatalf("session %d of %s: %v", i, c.principal, err)
			}
			last = s
		}
		if _, _, err := a.open(c, opening{name: "one-more"}); err == nil {
			t.Errorf("%s has one more", c.principal)
		}
		if _, _, err := a.open(c, opening{}); err != nil {
			t.Errorf("a session without a name: %v", err)
		}
	}
	other := &connection{principal: "sub:late"}
	if _, _, err := a.open(other, opening{name: "n"}); err == nil {
		t.Error("there is one more of all")
	}
	a.mu.Lock()
	sessions := len(a.sessions)
	a.mu.Unlock()
	last.detach(last.connection)
	a.expire(last, 1)
	if _, _, err := a.open(other, opening{name: "n"}); err != nil {
		t.Errorf("where one has ended: %v", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.sessions) != sessions {
		t.Errorf("%d sessions, before %d: what was refused left something behind", len(a.sessions), sessions)
	}
}

// TestTake: a session with a name goes from one client to another. What runs goes on, also where
// the first client does not read; what it still asks is refused.
func TestTake(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	first := r.client().named("n", protocol.InitializeParams{})
	first.must("process/start", sh("p", "while read x; do echo $x; done"), nil)
	_, err := r.client().opens("n", protocol.InitializeParams{})
	wantCode(t, "a session that has a client", err, protocol.CodeSessionAttached)
	unnamed := r.attach("")
	_, err = r.client().opens("", protocol.InitializeParams{ResumeSessionID: &unnamed.session, Take: true})
	wantCode(t, "taking a session without a name", err, protocol.CodeSessionAttached)

	second := r.client().named("n", protocol.InitializeParams{Take: true})
	waitFor(t, first.ended, "the end of the connection of the first client")
	if notes := first.await("a word", func(n []note) bool { return len(n) > 0 }); notes[0].method != "session/taken" {
		t.Errorf("the first client hears %+v", notes)
	}
	second.must("process/write", object{"processId": "p", "writeId": "1", "chunk": []byte("two\n")}, nil)
	if got := second.awaitNote("process/output", "p"); string(got.data) != "two\n" {
		t.Errorf("the second client hears %q", got.data)
	}
	// Now the second does not read, and the process waits for it.
	second.listen(false)
	second.must("process/start", sh("q", "yes"), nil)
	second.standsStill(r.process(second.session, "q"))

	// Whoever looks on sees what there is, and is not held up.
	watcher := r.attach("")
	var read protocol.ReadResult
	watcher.must("process/read", object{"sessionId": second.session, "processId": "q", "afterSeq": 1}, &read)
	if len(read.Chunks) == 0 || read.Closed {
		t.Errorf("an observer reads %+v", read)
	}

	third := r.client()
	third.quiet()
	third.named("n", protocol.InitializeParams{Take: true})
	eventually(t, "the process goes on", func() bool { n, _ := third.received(); return n > 1<<20 })
	if third.session != second.session {
		t.Error("it is another session")
	}
	second.listen(true)
	waitFor(t, second.ended, "the end of the connection of the second client")
}

// TestTakenRevoked: who has lost a session to somebody else, and then the right to connect,
// takes nothing along; who has the session then does.
func TestTakenRevoked(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	revoked := func() *client {
		ours, theirs := rpc.Pipe()
		return r.clientOn(ours, r.accept(ours, revocable{theirs})).named("n", protocol.InitializeParams{Take: true})
	}
	first := revoked()
	pids := family(t, first, "p", both)
	second := revoked()
	waitFor(t, first.served, "the end of the first connection")
	if gone(pids)() || r.session(second.session) == nil {
		t.Error("the session has ended with the client that had lost it")
	}
	second.drop()
	eventually(t, "the session of a revoked client ends", gone(pids))
	if all := r.attach("").sessions(); len(all) != 0 {
		t.Errorf("there is still %+v", all)
	}
}

// TestEndSession: a session is ended by another client, while a process of it waits for its own
// client to read.
func TestEndSession(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	own := r.client().named("n", protocol.InitializeParams{})
	pids := family(t, own, "both", both)
	own.listen(false)
	own.must("process/start", sh("p", "yes"), nil)
	own.standsStill(r.process(own.session, "p"))
	other := r.attach("")
	other.must("session/end", object{"sessionId": own.session}, nil)
	eventually(t, "what ran in the session is killed", gone(pids))
	own.listen(true)
	waitFor(t, own.ended, "the end of the connection")
	wantCode(t, "coming back", r.client().hello(own.session), protocol.CodeInvalidRequest)
	if opened, err := r.client().opens("n", protocol.InitializeParams{}); err != nil || !opened.Created {
		t.Errorf("the name is not free: %+v, %v", opened, err)
	}
}

// TestEndSessionOfDeaf: a session whose client does not read what comes from a socket is ended by
// another client at once, and by its own as soon as that has had time to read.
func TestEndSessionOfDeaf(t *testing.T) {
	t.Parallel()
	address := "tcp://" + listenFor(t, flood)
	for _, by := range []string{"another", "itself"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Config{})
			own := r.client().named("n", protocol.InitializeParams{})
			session := r.session(own.session)
			own.listen(false)
			defer own.listen(true)
			own.must("socket/open", object{"socketId": "s", "address": address}, nil)
			socket, err := session.sockets.Get(t.Context(), "s", func() error { return nil })
			if err != nil {
				t.Fatal(err)
			}
			var sent uint64
			eventually(t, "the socket waits for its client", func() bool {
				before := sent
				beyond, ok := errors.AsType[*sockets.ReceivedError](socket.Ack(math.MaxUint64))
				if !ok {
					t.Fatal("everything was sent")
				}
				sent = beyond.To
				return sent > 0 && sent == before
			})
			if by == "another" {
				r.attach("").must("session/end", object{"sessionId": own.session}, nil)
			} else if _, err := own.peer.Begin("session/end", object{"sessionId": own.session}); err != nil {
				t.Fatal(err)
			}
			waitFor(t, own.served, "the end of the connection, though the client does not read")
			if opened, err := r.client().opens("n", protocol.InitializeParams{}); err != nil || !opened.Created {
				t.Errorf("the name is not free: %+v, %v", opened, err)
			}
		})
	}
}
