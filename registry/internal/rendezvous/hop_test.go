package rendezvous

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/store/storetest"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/registry/internal/notice"
)

// TestNATSRestart: when NATS is started anew, streams inside one server notice nothing.
// Between servers, streams that acknowledge go on and the others are reset.
func TestNATSRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ns := storetest.NATS(t, dir, nil)
	defer func() { storetest.Stop(ns) }()
	url := ns.ClientURL()
	at := ns.Addr()
	c := newClusterOn(t, storetest.At(t, url), url, func() *store.Store { return storetest.At(t, url) })
	a, b := c.server(settings{}), c.server(settings{})
	e := a.executor()
	local, plain, far := a.harness(), b.harness(), b.harness()
	opened(local, e, "local", 0)
	opened(plain, e, "plain", 0)
	opened(far, e, "acknowledged", 1)

	storetest.Stop(ns)
	exchange(local, e, "local", 0)
	exchange(local, e, "local", 0)
	far.sendFrame(acked(data("acknowledged", 1, "lost"), 1))
	ns = storetest.NATS(t, dir, at)

	// The server that notices the loss first gives the reason.
	e.wantAnyReset("plain", resetRouteLost, resetHarnessGone)
	plain.wantAnyReset("plain", resetRouteLost, resetExecutorGone)
	// An end repeats what was lost until it arrives.
	again := acked(data("acknowledged", 1, "again"), 1)
	e.until(again.Append(nil), func() { far.sendFrame(again) })
	far.until(again.Append(nil), func() { e.sendFrame(again) })
	e.past(far, "acknowledged")
	exchange(local, e, "local", 0)
	c.eventually("a harness can connect", func() bool {
		s, err := socket.Dial(t.Context(), b.url(b.ticket(ticket.Harness)), nil, socket.Config{})
		if err != nil {
			return false
		}
		s.Close()
		return true
	})
}

// TestServerDies: a server that stops without a word is taken for dead. The other servers
// find the executor that it had in the store again.
func TestServerDies(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	cfg := settings{Silence: nodeSilence}
	a, b, third := c.server(cfg), c.server(cfg), c.server(cfg)
	e := a.executor()
	plain, far := b.harness(), b.harness()
	opened(plain, e, "plain", 0)
	opened(far, e, "acknowledged", 1)
	c.eventually("they have heard of each other", func() bool {
		b.hop.mu.Lock()
		defer b.hop.mu.Unlock()
		return len(b.hop.heard) == 2
	})
	a.stop() // no beat, no answer any more
	plain.wantEnd()
	e = third.executor()
	far.want(e.sendFrame(acked(resume("acknowledged"), 1)))
	exchange(far, e, "acknowledged", 1)
}

// TestServerCloses: the others learn at once of a server that ends.
func TestServerCloses(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a, b, third := c.server(settings{}), c.server(settings{Grace: 300 * time.Millisecond}), c.server(settings{})
	e := b.executor()
	plain, far := a.harness(), a.harness()
	opened(plain, e, "plain", 0)
	opened(far, e, "acknowledged", 1)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	e.wantReset("plain", resetHarnessGone)
	e.wantReset("acknowledged", resetHarnessGone)

	far = third.harness()
	plain = third.harness()
	opened(plain, e, "plain", 0)
	opened(far, e, "acknowledged", 1)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	plain.wantEnd()
	e = third.dial(third.ticket(ticket.Executor))
	far.want(e.sendFrame(acked(resume("acknowledged"), 1)))
	exchange(far, e, "acknowledged", 1)
}

// TestExecutorMovesUnderLoad: the executor changes servers again and again while
// a stream is in use. Nothing is out of order, and nothing is lost for good.
func TestExecutorMovesUnderLoad(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	servers := []*relayServer{c.server(settings{}), c.server(settings{})}
	e := servers[0].executor()
	h := servers[0].harness()
	opened(h, e, "stream", 1)

	stop := make(chan struct{})
	var sending sync.WaitGroup
	defer sending.Wait()
	defer close(stop)
	sending.Go(func() {
		for seq := uint32(1); ; seq++ {
			select {
			case <-stop:
				return
			default:
				h.sendFrame(acked(data("stream", seq, "x"), 1))
			}
		}
	})
	var last uint32
	for n := range 6 {
		e = servers[(n+1)%2].dial(servers[(n+1)%2].ticket(ticket.Executor))
		e.sendFrame(acked(resume("stream"), 1))
		for range 100 {
			var f frame.Frame
			if err := frame.Decode(e.receive(), &f); err != nil {
				t.Fatal(err)
			}
			if f.Body != frame.Data || f.Seq <= last {
				t.Fatalf("got %d seq %d after %d", f.Body, f.Seq, last)
			}
			last = f.Seq
		}
		c.waitOnline(servers[(n+1)%2].node)
	}
}

// TestForgotten: two servers of which one or both have forgotten what they knew of the
// other find out again, at the latest with the next frame of a stream.
func TestForgotten(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		forget func(executors, harnesses *relayServer)
	}{
		{"harnesses", func(x, h *relayServer) { x.hop.left(h.node) }},
		{"executor", func(x, h *relayServer) { h.hop.left(x.node) }},
		{"each other", func(x, h *relayServer) { x.hop.left(h.node); h.hop.left(x.node) }},
		{"what harnesses were told", func(_, h *relayServer) { h.hop.beginAnew() }},
		{"what the executor was told", func(x, _ *relayServer) { x.hop.beginAnew() }},
		{"what both were told", func(x, h *relayServer) { x.hop.beginAnew(); h.hop.beginAnew() }},
		{"the harness", func(x, h *relayServer) {
			h.hop.tell(x.node, notice.Notice{Kind: notice.Detach, Registration: h.c.registration.ID, Stream: "acknowledged"})
			h.hop.tell(x.node, notice.Notice{Kind: notice.Detach, Registration: h.c.registration.ID, Stream: "plain"})
		}},
		{"the presence", func(x, h *relayServer) {
			h.c.forget(h.c.environmentID)
			x.hop.beginAnew()
			h.hop.beginAnew()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			a, b := c.server(settings{Grace: time.Hour}), c.server(settings{Grace: time.Hour})
			e, plain, far := a.executor(), b.harness(), b.harness()
			opened(plain, e, "plain", 0)
			opened(far, e, "acknowledged", 1)
			c.eventually("they have heard of each other", func() bool { return a.hears(b) && b.hears(a) })
			tt.forget(a, b)

			up, down := acked(data("acknowledged", 1, "up"), 1), acked(data("acknowledged", 1, "down"), 1)
			e.until(up.Append(nil), func() { far.sendFrame(up) })
			e.past(far, "acknowledged")
			far.until(down.Append(nil), func() { e.sendFrame(down) })
			// A stream that cannot go on ends at both sides when either sends.
			e.untilReset("plain", func() { e.sendFrame(data("plain", 1, "lost")) })
			plain.untilReset("plain", func() { plain.trySend(data("plain", 1, "lost")) })
			c.waitOnline(a.node)
			openedAtLast(b, e)
		})
	}
}

// hears tells whether the server knows that the other one lives.
func (ts *relayServer) hears(other *relayServer) bool {
	ts.hop.mu.Lock()
	defer ts.hop.mu.Unlock()
	_, ok := ts.hop.heard[other.node]
	return ok
}

func presenceRevision(c *cluster) uint64 {
	c.t.Helper()
	_, revision, _, err := c.st.Presence(c.t.Context(), c.environmentID)
	if err != nil {
		c.t.Fatal(err)
	}
	return revision
}

// TestLateAbsent: an absent that answers a frame for an executor's older websocket does
// no harm to the newer websocket at the same server.
func TestLateAbsent(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a, b := c.server(settings{}), c.server(settings{})
	a.executor()
	first := presenceRevision(c)
	e := a.dial(a.ticket(ticket.Executor))
	c.eventually("the newer websocket is the one", func() bool { return presenceRevision(c) > first })
	h := b.harness()
	opened(h, e, "stream", 0)
	revision := presenceRevision(c)
	a.hop.tell(b.node, notice.Notice{Kind: notice.Absent, Registration: c.registration.ID, Revision: first})
	exchange(h, e, "stream", 0)
	exchange(h, e, "stream", 0)
	a.hop.tell(b.node, notice.Notice{Kind: notice.Absent, Registration: c.registration.ID, Revision: revision})
	h.wantEnd()
}

// TestPresenceOrder: late notices about an older websocket, or of a server that has
// neither end, change nothing.
func TestPresenceOrder(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.server(settings{})
	e, h := s.executor(), s.harness()
	opened(h, e, "stream", 0)
	m := s.find(c.registration.ID)
	defer s.leave(m)
	nc := c.nats()
	for _, text := range []string{
		`{"kind":"online","registration":%q,"revision":1}`, `{"kind":"offline","registration":%q,"revision":1}`,
		`{"kind":"absent","registration":%q}`, `{"kind":"moved","registration":%q,"stream":"stream"}`,
		`{"kind":"refused","registration":%q,"stream":"stream","intruder":true}`, `{"kind":"detach","registration":%q,"stream":"stream"}`,
		`{"kind":"taken","registration":%q,"stream":"stream","bytes":-1}`,
	} {
		if err := nc.PublishRequest(toAll, "impostor", fmt.Appendf(nil, text, c.registration.ID)); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.PublishRequest(toAll, "impostor", []byte(`{"kind":"beat"}`)); err != nil {
		t.Fatal(err)
	}
	c.eventually("all of it was heard", func() bool {
		s.hop.mu.Lock()
		defer s.hop.mu.Unlock()
		_, ok := s.hop.heard["impostor"]
		return ok
	})
	exchange(h, e, "stream", 0)
}

// TestNoLeak: a closed server leaves nothing behind.
func TestNoLeak(t *testing.T) {
	before := goleak.IgnoreCurrent()
	func() {
		dir := t.TempDir() + "/data"
		st, err := store.Open(t.Context(), store.Config{Dir: dir, Timeout: soon})
		if err != nil {
			t.Fatal(err)
		}
		c := newClusterOn(t, st, dir, func() *store.Store { return st })
		a, b := c.server(settings{}), c.server(settings{})
		e, h := a.executor(), b.harness()
		opened(h, e, "plain", 0)
		opened(h, e, "acknowledged", 1)
		near := a.harness()
		opened(near, e, "near", 1)
		near.socket.Close()
		near.wantEnd()
		for _, s := range []*relayServer{a, b} {
			s.http.Close()
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if n := s.metrics.Streams.Load() + s.metrics.Executors.Load() + s.metrics.Harnesses.Load(); n != 0 || len(s.meetings) != 0 {
				t.Errorf("%d things and %d meetings are left", n, len(s.meetings))
			}
		}
		e.wantEnd()
		h.wantEnd()
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}()
	goleak.VerifyNone(t, before)
}

// TestNotices: no letters of other servers, in whatever order, break what sound checks.
func TestNotices(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for round := range 20 {
		s := c.server(settings{})
		e, h := s.executor(), s.harness()
		opened(h, e, "stream", 1)
		revision := presenceRevision(c)
		rng := rand.New(rand.NewPCG(uint64(round), 0))
		notice := func() []byte {
			return notice.Notice{
				Kind: pick(rng, notice.Online, notice.Offline, notice.Open, notice.Detach, notice.Moved, notice.Refused,
					notice.Absent, notice.Unknown, notice.Taken, notice.Beat, notice.Leave, "newer"),
				Registration: pick(rng, c.registration.ID, c.registration.ID, "reg_other", ""),
				Revision:     pick(rng, 0, 1, revision-1, revision, revision+1, math.MaxUint64),
				Stream:       pick(rng, "stream", "stream", "another", ""),
				Principal:    pick(rng, c.harnessKey, "key:0000000000000000", ""),
				Acknowledges: pick(rng, false, true), Detached: pick(rng, false, true), Intruder: pick(rng, false, true),
				Bytes: pick(rng, 9, 0, math.MinInt, math.MaxInt),
			}.Encode()
		}
		content := func() []byte {
			stream := pick(rng, "stream", "another")
			f := pick(rng, data(stream, 1, "x"), acked(data(stream, 2, "y"), 1), resume(stream), handshake(stream),
				frame.Frame{StreamID: []byte(stream), Body: frame.Reset, Reason: []byte("why")})
			return f.Append(nil)
		}
		for n := range 200 {
			from, hop := pick(rng, "elsewhere", "somewhere", ""), s.hop
			switch rng.IntN(5) {
			case 0:
				hop.fromAll(store.Letter{From: from, Data: notice()})
			case 1:
				hop.fromServer(store.Letter{About: hopNotice, From: from, Data: notice()})
			case 2:
				text := notice()
				text[rng.IntN(len(text))] = byte(rng.Uint32())
				hop.fromServer(store.Letter{About: hopNotice, From: from, Data: text})
			case 3:
				hop.fromServer(store.Letter{About: hopHarness + "." + c.registration.ID, From: from, Data: content()})
			case 4:
				from += pick(rng, "", ".", ".x", fmt.Sprintf(".%d", revision), ".18446744073709551615")
				hop.fromServer(store.Letter{About: hopExecutor + "." + c.registration.ID, From: from, Data: content()})
			}
			if err := sound(s, c.registration.ID); err != nil {
				t.Fatalf("round %d, message %d: %v", round, n, err)
			}
		}
	}
}

func pick[T any](rng *rand.Rand, from ...T) T { return from[rng.IntN(len(from))] }

// sound checks what is always true of a meeting's routes.
func sound(s *relayServer, registrationID string) error {
	m := s.find(registrationID)
	if m == nil {
		return nil
	}
	defer s.leave(m)
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.routes) > maxMeetingStreams {
		return fmt.Errorf("%d routes", len(m.routes))
	}
	for _, rt := range m.routes {
		if (rt.up != nil) != (m.executor != nil) || (rt.down != nil) != (rt.harness != nil) || rt.harness != nil && rt.node != "" {
			return fmt.Errorf("route %+v", rt)
		}
	}
	return nil
}
