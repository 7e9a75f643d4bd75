package agent

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

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
	rig.Must(c.t, rig.Err(c.opens(name, ask)))
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
	inBubble(t, Config{}, func(t *testing.T, r *harness) {
		owners := []string{"uid:1000", "uid:1001", "sub:uid:1000", ""}
		var clients []*client
		for _, owner := range owners {
			c := r.by(known{principal: owner}).named("same", protocol.InitializeParams{})
			c.starts("p").prints("secret")
			clients = append(clients, c)
		}
		clients[1].drop()
		for i, c := range clients {
			if i == 1 {
				c = r.by(known{principal: owners[1]}).named("", protocol.InitializeParams{})
			}
			if all := c.sessions(); len(all) != 1 || all[0].SessionID != clients[i].session || all[0].Name != "same" {
				t.Errorf("%q is shown %+v", owners[i], all)
			}
			for j, other := range clients {
				if i == j {
					continue
				}
				for _, q := range []struct {
					method string
					params object
				}{
					{"process/list", object{}},
					{"process/read", object{"processId": "p"}},
					{"process/read", object{"processId": "p", "exitOnly": true, "waitMs": 60_000}},
					{"process/signal", object{"processId": "p", "signal": "kill"}},
					{"process/terminate", object{"processId": "p"}},
					{"session/end", object{}},
				} {
					q.params["sessionId"] = other.session
					want := protocol.InvalidRequest("unknown session id %s", other.session).Error()
					err := fmt.Sprint(c.call(q.method, q.params, nil))
					rig.Is(t, err, want, "%s by %q in the session of %q", q.method, owners[i], owners[j])
				}
				stranger := r.by(known{principal: owners[i]})
				wantCode(t, "resume", stranger.hello(other.session), protocol.CodeInvalidRequest)
				_, err := stranger.opens("", protocol.InitializeParams{ResumeSessionID: &other.session, Take: true})
				wantCode(t, "take", err, protocol.CodeInvalidRequest)
			}
		}
		for i, c := range clients {
			s := r.session(c.session)
			rig.Is(t, s == nil || s.listed().Running != 1, false, "the session of %q is harmed", owners[i])
		}
		// A session without a name is for whoever knows its id, as it was before there were names.
		a := r.by(known{principal: "uid:1000"}).named("", protocol.InitializeParams{})
		a.drop()
		rig.Check(t, r.by(known{principal: "uid:1001"}).hello(a.session))
	})
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
			rig.Must(t, err)
			return s
		}
		first, second := &connection{}, &connection{}
		s := open(first, opening{name: "n"})
		time.Sleep(2 * time.Hour)
		rig.Is(t, gone(s), false, "gone under its client")
		s.detach(first)
		rig.Is(t, *s.listed().ExpiresAtMs, time.Now().Add(time.Hour).UnixMilli(), "it is said to end at")
		time.Sleep(time.Hour - time.Second)
		if again := open(second, opening{name: "n", retain: new(2 * time.Hour)}); again != s || s.listed().ExpiresAtMs != nil {
			t.Fatal("the name has not opened the session")
		}
		time.Sleep(2 * time.Hour)
		s.detach(second)
		time.Sleep(time.Hour - time.Second)
		rig.Is(t, gone(s), false, "gone before its time")
		time.Sleep(2 * time.Second)
		rig.Is(t, gone(s), true, "gone after the time that an operator allows")
		// A client may ask for less, also for one without a name.
		for _, name := range []string{"m", ""} {
			s := open(first, opening{name: name, retain: new(time.Second)})
			s.detach(first)
			time.Sleep(900 * time.Millisecond)
			rig.Is(t, gone(s), false, "%q gone before its time", name)
			time.Sleep(200 * time.Millisecond)
			rig.Is(t, gone(s), true, "%q gone after its time", name)
			s = open(first, opening{name: name, retain: new(time.Duration(0))})
			s.detach(first)
			rig.Is(t, gone(s), true, "%q gone, of which nothing was to be kept", name)
		}
	})
}

// TestNamedHeldByProcess: a running process holds a session with a name, and none without.
func TestNamedHeldByProcess(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{SessionTTL: time.Hour}, func(t *testing.T, r *harness) {
		none := protocol.InitializeParams{RetainMs: new(uint64(0))}
		a, b := r.client().named("n", none), r.client().named("", none)
		p, q := a.starts("p"), b.starts("p")
		a.drop()
		b.drop()
		watcher := r.attach("")
		synctest.Wait()
		if all := watcher.sessions(); len(all) != 1 || all[0].Running != 1 || all[0].Attached || all[0].ExpiresAtMs != nil || !p.runs() || q.runs() {
			t.Fatalf("while a process runs: %+v; it runs: %v; that of a session without a name: %v", all, p.runs(), q.runs())
		}
		watcher.must("process/terminate", object{"sessionId": a.session, "processId": "p"}, nil)
		synctest.Wait()
		rig.Is(t, len(watcher.sessions()), 0, "sessions after the last process")
		rig.Is(t, p.runs(), false, "it runs")
	})
}

// TestNamedKeepsEnded: the ended processes of a session with a name are kept as long as the
// session, with their output and their exit code.
func TestNamedKeepsEnded(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{SessionTTL: time.Minute}, func(t *testing.T, r *harness) {
		a := r.client().named("n", protocol.InitializeParams{})
		p := a.starts("p")
		p.prints("out")
		p.exit(3)
		a.drop()
		time.Sleep(time.Hour)
		b := r.attach("")
		var read protocol.ReadResult
		b.must("process/read", object{"sessionId": a.session, "processId": "p"}, &read)
		if len(read.Chunks) != 1 || string(read.Chunks[0].Chunk) != "out" || read.ExitCode == nil || *read.ExitCode != 3 {
			t.Errorf("what is kept is %+v", read)
		}
		if all := b.sessions(); len(all) != 1 || all[0].Ended != 1 || all[0].Running != 0 || all[0].ExpiresAtMs == nil {
			t.Errorf("the session is %+v", all)
		}
	})
}

// TestTake: a session with a name goes from one client to another. What runs goes on, also where
// the first client does not read; what it still asks is refused.
func TestTake(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{}, func(t *testing.T, r *harness) {
		first := r.client().named("n", protocol.InitializeParams{})
		p := first.starts("p")
		unnamed := r.attach("")
		_, err := r.client().opens("", protocol.InitializeParams{ResumeSessionID: &unnamed.session, Take: true})
		wantCode(t, "taking a session without a name", err, protocol.CodeSessionAttached)

		second := r.client().named("n", protocol.InitializeParams{Take: true})
		waitFor(t, first.ended, "the end of the connection of the first client")
		notes := first.await("a word", func(n []note) bool { return len(n) > 0 })
		rig.Is(t, notes[0].method, "session/taken", "the first client hears")
		p.prints("two")
		rig.Is(t, string(second.awaitNote("process/output", "p").data), "two", "the second client hears")
		// Now the second does not read, and the process waits for it.
		second.listen(false)
		q := second.starts("q")
		go func() {
			for range 10 {
				q.prints("word ")
			}
		}()
		second.standsStill("q")

		// Whoever looks on sees what there is, and is not held up.
		watcher := r.attach("")
		var read protocol.ReadResult
		watcher.must("process/read", object{"sessionId": second.session, "processId": "q", "afterSeq": 1}, &read)
		rig.Is(t, len(read.Chunks) > 0 && !read.Closed, true, "an observer reads on: %+v", read)
		third := r.client().named("n", protocol.InitializeParams{Take: true})
		third.await("the last word", func(notes []note) bool { return len(notes) > 0 && notes[len(notes)-1].seq == 10 })
		rig.Is(t, third.session, second.session, "it is another session")
		second.listen(true)
		waitFor(t, second.ended, "the end of the connection of the second client")
	})
}

// TestTakenRevoked: who has lost a session to somebody else, and then the right to connect,
// takes nothing along; who has the session then does.
func TestTakenRevoked(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{}, func(t *testing.T, r *harness) {
		first := r.by(known{revoked: true}).named("n", protocol.InitializeParams{})
		p := first.starts("p")
		second := r.by(known{revoked: true}).named("n", protocol.InitializeParams{Take: true})
		waitFor(t, first.served, "the end of the first connection")
		synctest.Wait()
		rig.Is(t, p.runs() && r.session(second.session) != nil, true, "the session outlives the client that had lost it")
		second.drop()
		synctest.Wait()
		rig.Is(t, len(r.attach("").sessions()), 0, "sessions at the end")
		rig.Is(t, p.runs(), false, "the process runs")
	})
}

// TestEndSession: a session is ended while a process of it waits for its client to read: by another
// client at once, and by its own as soon as that has had time to read.
func TestEndSession(t *testing.T) {
	t.Parallel()
	for _, itself := range []bool{false, true} {
		inBubble(t, Config{}, func(t *testing.T, r *harness) {
			own := r.client().named("n", protocol.InitializeParams{})
			own.listen(false)
			p := own.starts("p")
			go func() {
				p.prints("word")
				p.prints("word")
			}()
			own.standsStill("p")
			if itself {
				rig.Must(t, rig.Err(own.peer.Begin("session/end", object{"sessionId": own.session})))
			} else {
				r.attach("").must("session/end", object{"sessionId": own.session}, nil)
			}
			waitFor(t, own.served, "the end of the connection, though the client does not read")
			synctest.Wait()
			rig.Is(t, p.runs(), false, "what ran in the session runs")
			own.listen(true)
			wantCode(t, "coming back", r.client().hello(own.session), protocol.CodeInvalidRequest)
			opened, err := r.client().opens("n", protocol.InitializeParams{})
			rig.Is(t, err != nil || !opened.Created, false, "the name is not free: %+v, %v", opened, err)
		})
	}
}

// TestEndSessionOfSocket: a client that does not read what comes from a socket holds up nobody else,
// and its session is ended by another client at once.
func TestEndSessionOfSocket(t *testing.T) {
	t.Parallel()
	r := newHarness(t, Config{})
	own := r.client().named("n", protocol.InitializeParams{})
	socket := object{"socketId": "s", "address": "tcp://" + listenFor(t, flood)}
	own.must("socket/open", socket, nil)
	own.listen(false)
	defer own.listen(true)
	other := r.attach("")
	other.must("socket/open", socket, nil)
	other.await("the window", func(notes []note) bool { return told(notes, "s") == protocol.MaxSocketWindow })
	other.must("session/end", object{"sessionId": own.session}, nil)
	waitFor(t, own.served, "the end of the connection, though the client does not read")
	opened, err := r.client().opens("n", protocol.InitializeParams{})
	rig.Is(t, err != nil || !opened.Created, false, "the name is not free: %+v, %v", opened, err)
}
