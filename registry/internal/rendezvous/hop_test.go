package rendezvous

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/registry/internal/notice"
	"github.com/execagent/execagent/test/rig"
)

// TestStoreComesBack: while the store is away, and no letter goes between servers, streams inside one
// server notice nothing. Between servers, streams that acknowledge go on and the others are reset.
func TestStoreComesBack(t *testing.T) {
	bubble(t, func(c *cluster) {
		a, b := c.server(settings{}), c.server(settings{})
		e := a.executor()
		local, plain, far := a.harness(), b.harness(), b.harness()
		opened(local, e, "local", 0)
		opened(plain, e, "plain", 0)
		opened(far, e, "acknowledged", 1)

		c.fake.Away(true)
		exchange(local, e, "local", 0)
		far.sendFrame(acked(data("acknowledged", 1, "lost"), 1))
		time.Sleep(2 * nodeSilence) // nobody is taken for dead
		exchange(local, e, "local", 0)
		c.fake.Away(false)

		e.wantReset("plain", resetRouteLost)
		plain.wantEnd()
		// An end repeats what was lost until it arrives.
		again := acked(data("acknowledged", 1, "again"), 1)
		e.arrives(far, again)
		far.arrives(e, again)
		exchange(local, e, "local", 0)
		opened(b.harness(), e, "new", 0)
	})
}

// TestServerDies: a server that stops without a word is taken for dead. The other servers
// find the executor that it had in the store again.
func TestServerDies(t *testing.T) {
	bubble(t, func(c *cluster) {
		a, b, third := c.server(settings{}), c.server(settings{}), c.server(settings{})
		e, plain, far := a.executor(), b.harness(), b.harness()
		opened(plain, e, "plain", 0)
		opened(far, e, "acknowledged", 1)
		died := time.Now()
		a.stop() // no beat, no answer any more
		plain.wantEnd()
		took := time.Since(died)
		rig.Is(c.t, min(max(took, nodeSilence-beatInterval), nodeSilence+2*beatInterval), took, "it was taken for dead after")
		e = third.executor()
		far.want(e.sendFrame(acked(resume("acknowledged"), 1)))
		exchange(far, e, "acknowledged", 1)
	})
}

// TestServerCloses: the others learn at once of a server that ends.
func TestServerCloses(t *testing.T) {
	bubble(t, func(c *cluster) {
		a, b, third := c.server(settings{}), c.server(settings{}), c.server(settings{})
		e, plain, far := b.executor(), a.harness(), a.harness()
		opened(plain, e, "plain", 0)
		opened(far, e, "acknowledged", 1)
		began := time.Now()
		rig.Must(c.t, a.Close())
		e.wantReset("plain", resetHarnessGone)
		plain, far = third.harness(), third.harness()
		e.want(far.sendFrame(acked(resume("acknowledged"), 1)))
		exchange(far, e, "acknowledged", 1)
		opened(plain, e, "plain", 0)
		rig.Must(c.t, b.Close())
		plain.wantEnd()
		e = third.end(third.ticket(ticket.Executor))
		far.want(e.sendFrame(acked(resume("acknowledged"), 1)))
		exchange(far, e, "acknowledged", 1)
		rig.Is(c.t, time.Since(began) < beatInterval, true, "it took less than a beat: %v", time.Since(began))
	})
}

// TestExecutorMovesUnderLoad: the executor changes servers again and again while
// a stream is in use. Nothing is out of order, and nothing is lost for good.
func TestExecutorMovesUnderLoad(t *testing.T) {
	bubble(t, func(c *cluster) {
		servers := []*relayServer{c.server(settings{}), c.server(settings{})}
		e, h := servers[0].executor(), servers[0].harness()
		opened(h, e, "stream", 1)
		var sending sync.WaitGroup
		defer sending.Wait()
		defer h.socket.Close()
		sending.Go(func() {
			for seq := uint32(1); h.socket.Err() == nil; seq++ {
				h.trySend(acked(data("stream", seq, "x"), 1))
				time.Sleep(time.Millisecond)
			}
		})
		var last uint32
		for n := range 20 {
			to := servers[(n+1)%2]
			e = to.end(to.ticket(ticket.Executor))
			e.sendFrame(acked(resume("stream"), 1))
			for range 100 {
				var f frame.Frame
				rig.Must(c.t, frame.Decode(e.receive(), &f))
				if f.Body != frame.Data || f.Seq <= last {
					c.t.Fatalf("got %d seq %d after %d", f.Body, f.Seq, last)
				}
				last = f.Seq
			}
			c.waitOnline(to)
		}
	})
}

// TestForgotten: two servers of which one or both have forgotten what they knew of the
// other find out again, at the latest with the next frame of a stream.
func TestForgotten(t *testing.T) {
	t.Parallel()
	for name, forget := range map[string]func(executors, harnesses *relayServer){
		"harnesses":                  func(x, h *relayServer) { x.hop.left(h.node) },
		"executor":                   func(x, h *relayServer) { h.hop.left(x.node) },
		"each other":                 func(x, h *relayServer) { x.hop.left(h.node); h.hop.left(x.node) },
		"what harnesses were told":   func(_, h *relayServer) { h.hop.beginAnew() },
		"what the executor was told": func(x, _ *relayServer) { x.hop.beginAnew() },
		"what both were told":        func(x, h *relayServer) { x.hop.beginAnew(); h.hop.beginAnew() },
		"letters":                    func(x, h *relayServer) { h.hop.missedLetters(nil) },
		"the harness": func(x, h *relayServer) {
			h.hop.tell(x.node, notice.Notice{Kind: notice.Detach, Registration: h.c.registration.ID, Stream: "acknowledged"})
			h.hop.tell(x.node, notice.Notice{Kind: notice.Detach, Registration: h.c.registration.ID, Stream: "plain"})
		},
		"the presence": func(x, h *relayServer) {
			h.c.fake.Forget(h.c.environmentID)
			x.hop.beginAnew()
			h.hop.beginAnew()
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(c *cluster) {
				a, b := c.server(settings{}), c.server(settings{})
				e, plain, far := a.executor(), b.harness(), b.harness()
				opened(plain, e, "plain", 0)
				opened(far, e, "acknowledged", 1)
				c.settles("they have heard of each other", func() bool { return a.isHeardBy(b) && b.isHeardBy(a) })
				forget(a, b)
				e.arrives(far, acked(data("acknowledged", 1, "up"), 1))
				far.arrives(e, acked(data("acknowledged", 1, "down"), 1))
				exchange(far, e, "acknowledged", 1)
				// A stream that cannot go on ends at both sides when either sends.
				e.trySend(data("plain", 1, "lost"))
				plain.trySend(data("plain", 1, "lost"))
				c.settles("the plain stream has ended", func() bool { return a.metrics.Streams.Load() == 1 && b.metrics.Streams.Load() == 1 })
				plain.waiting()
				e.waiting()
				c.waitOnline(a)
				opened(b.harness(), e, "new", 0)
			})
		})
	}
}

// TestLateAbsent: an absent that answers a frame for an executor's older websocket does
// no harm to the newer websocket at the same server.
func TestLateAbsent(t *testing.T) {
	bubble(t, func(c *cluster) {
		a, b := c.server(settings{}), c.server(settings{})
		a.executor()
		first := c.presenceRevision()
		e := a.executor()
		h := b.harness()
		opened(h, e, "stream", 0)
		a.hop.tell(b.node, notice.Notice{Kind: notice.Absent, Registration: c.registration.ID, Revision: first})
		exchange(h, e, "stream", 0)
		exchange(h, e, "stream", 0)
		a.hop.tell(b.node, notice.Notice{Kind: notice.Absent, Registration: c.registration.ID, Revision: c.presenceRevision()})
		h.wantEnd()
	})
}

// TestPresenceOrder: late notices about an older websocket, or of a server that has
// neither end, change nothing.
func TestPresenceOrder(t *testing.T) {
	bubble(t, func(c *cluster) {
		s := c.server(settings{})
		e, h := s.executor(), s.harness()
		opened(h, e, "stream", 0)
		for _, text := range []string{
			`{"kind":"online","registration":%q,"revision":1}`, `{"kind":"offline","registration":%q,"revision":1}`,
			`{"kind":"absent","registration":%q}`, `{"kind":"moved","registration":%q,"stream":"stream"}`,
			`{"kind":"refused","registration":%q,"stream":"stream","intruder":true}`, `{"kind":"detach","registration":%q,"stream":"stream"}`,
			`{"kind":"taken","registration":%q,"stream":"stream","bytes":-1}`,
		} {
			rig.Must(c.t, s.hop.post.SendAll("impostor", fmt.Appendf(nil, text, c.registration.ID)))
		}
		exchange(h, e, "stream", 0)
	})
}

// TestNotices: no letters of other servers, in whatever order, break what sound checks.
func TestNotices(t *testing.T) {
	bubble(t, notices)
}

func notices(c *cluster) {
	for round := range 20 {
		s := c.server(settings{})
		e, h := s.executor(), s.harness()
		opened(h, e, "stream", 1)
		revision := c.presenceRevision()
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
			rig.Is(c.t, sound(s, c.registration.ID), nil, "round %d, message %d", round, n)
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
