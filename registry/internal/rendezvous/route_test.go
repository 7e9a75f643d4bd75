package rendezvous

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/frame"
)

// TestRoute: frames of many streams go both ways as they are and in order.
func TestRoute(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d servers", servers), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			var all []*relayServer
			for range servers {
				all = append(all, c.server(settings{}))
			}
			testRoute(t, all[0], all[servers-1])
		})
	}
}

func testRoute(t *testing.T, forExecutor, forHarnesses *relayServer) {
	e := forExecutor.executor()
	const streams, frames = 4, 100
	harnesses := make(map[string]*end)
	for i := range streams {
		stream := fmt.Sprintf("stream %d", i)
		harnesses[stream] = forHarnesses.harness()
		opened(harnesses[stream], e, stream, uint32(i%2)) // half of them acknowledge
	}
	// A rendezvous passes on fields of a frame that it does not know.
	strange := func(stream string, seq int) []byte {
		f := data(stream, uint32(seq), strings.Repeat("x", rand.IntN(70_000)+1))
		return append(f.Append(nil), 0x9a, 0x01, 0x03, 'a', 'b', 'c') // field 19
	}
	sent := make(map[string][][]byte)
	for n := range frames {
		for stream, h := range harnesses {
			b := strange(stream, n)
			sent[stream] = append(sent[stream], b)
			h.send(b)
			e.send(b)
		}
	}
	atExecutor := make(map[string]int)
	for range streams * frames {
		got := e.receive()
		var f frame.Frame
		if err := frame.Decode(got, &f); err != nil {
			t.Fatal(err)
		}
		stream := string(f.StreamID)
		if want := sent[stream][atExecutor[stream]]; !bytes.Equal(got, want) {
			t.Fatalf("executor got %s as number %d", printable(got), atExecutor[stream])
		}
		atExecutor[stream]++
	}
	for stream, h := range harnesses {
		for _, want := range sent[stream] {
			h.want(want)
		}
		h.wantNothing()
	}
}

// TestIsolation: a harness reaches nothing but its own streams.
func TestIsolation(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d servers", servers), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			s := c.server(settings{})
			other := s
			if servers == 2 {
				other = c.server(settings{})
			}
			stranger := other.ticket(ticket.Harness)
			stranger.Principal = c.principal(store.Key{Role: string(ticket.Harness), Environments: "*"})

			e := s.executor()
			h := s.harness()
			opened(h, e, "mine", 0)
			opened(h, e, "acknowledged", 1)

			t.Run("frames of other streams", func(t *testing.T) {
				thief := other.dial(stranger)
				opened(thief, e, "yours", 0)
				for _, f := range []frame.Frame{
					data("mine", 1, "forged"), {StreamID: []byte("mine"), Body: frame.Reset, Reason: []byte("forged")},
					{StreamID: []byte("mine"), Body: frame.Ack, Ack: 7}, {StreamID: []byte("mine"), Body: frame.Heartbeat},
					data("nobody's", 0, "forged"),
				} {
					thief.sendFrame(f)
				}
				e.want(thief.sendFrame(data("yours", 1, "fence")))
				exchange(h, e, "mine", 0)
				thief.wantNothing()
			})
			for _, stream := range []string{"mine", "acknowledged"} {
				for name, f := range map[string]frame.Frame{"resume": resume(stream), "handshake": handshake(stream)} {
					t.Run(name+" of "+stream, func(t *testing.T) {
						thief := other.dial(stranger)
						thief.sendFrame(f)
						thief.wantEnd()
						exchange(h, e, stream, 1)
					})
				}
			}
			t.Run("same principal, live stream", func(t *testing.T) {
				opened(h, e, "plain", 0)
				thief := other.harness()
				thief.sendFrame(resume("plain"))
				thief.wantEnd()
				exchange(h, e, "plain", 0)
			})
			t.Run("other registration", func(t *testing.T) {
				reg := c.register("other")
				k := other.ticket(ticket.Executor)
				k.EnvironmentID, k.RegistrationID = "other", reg.ID
				e2 := other.dial(k)
				c.eventually("it is online", func() bool { _, ok, err := c.st.Online(t.Context(), "other"); return ok && err == nil })
				k = other.ticket(ticket.Harness)
				k.EnvironmentID, k.RegistrationID = "other", reg.ID
				h2 := other.dial(k)
				opened(h2, e2, "mine", 0) // the same name, another stream
				e2.sendFrame(data("acknowledged", 9, "forged"))
				exchange(h2, e2, "mine", 0)
				exchange(h, e, "mine", 0)
				h.wantNothing()
				e.wantNothing()
			})
		})
	}
}

// TestInvalidFrames: a message that is not a frame is dropped and harms no stream.
func TestInvalidFrames(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.server(settings{})
	e, h := s.executor(), s.harness()
	opened(h, e, "stream", 0)
	long := frame.Frame{StreamID: bytes.Repeat([]byte("x"), frame.MaxStreamID+1), Body: frame.Resume}
	for _, from := range []*end{h, e} {
		for _, bad := range [][]byte{{}, {0xff}, []byte("text"), long.Append(nil), {0x08, 0x02}} {
			from.send(bad)
		}
	}
	exchange(h, e, "stream", 0)
	longest := string(long.StreamID[:frame.MaxStreamID])
	opened(h, e, longest, 0)
}

func TestTooManyStreams(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.server(settings{Limits: store.Limits{Streams: maxHarnessStreams + 1}})
	e, h := s.executor(), s.harness()
	for i := range maxHarnessStreams {
		opened(h, e, fmt.Sprint(i), 0)
	}
	h.sendFrame(resume("one too many"))
	h.wantReset("one too many", resetRefused)
	another := s.harness()
	opened(another, e, "last of the principal", 0)
	another.sendFrame(resume("beyond"))
	another.wantReset("beyond", resetRefused)
	// A place is free as soon as its stream has ended.
	e.want(h.sendFrame(frame.Frame{StreamID: []byte("0"), Body: frame.Reset, Reason: []byte("done")}))
	opened(another, e, "beyond", 0)
}

func TestHarnessWithoutStream(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.server(settings{})
	e, h := s.executor(), s.harness()
	opened(h, e, "stream", 0)
	m := s.find(c.registration.ID)
	defer s.leave(m)
	m.mu.Lock()
	s.opening = 50 * time.Millisecond // not before h has opened its stream
	m.mu.Unlock()
	s.harness().wantEnd()
	exchange(h, e, "stream", 0)
	h.want(e.sendFrame(frame.Frame{StreamID: []byte("stream"), Body: frame.Reset, Reason: []byte("done")}))
	h.wantEnd()
}

// TestReset: a reset of either end is passed on and ends the route; the id can be
// used again at once.
func TestReset(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d servers", servers), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			s := c.server(settings{})
			other := s
			if servers == 2 {
				other = c.server(settings{})
			}
			e, h := s.executor(), other.harness()
			reset := frame.Frame{StreamID: []byte("stream"), Body: frame.Reset, Reason: []byte("any")}
			for _, ack := range []uint32{0, 1} {
				opened(h, e, "stream", ack)
				e.want(h.sendFrame(reset))
				opened(h, e, "stream", ack)
				h.want(e.sendFrame(reset))
				opened(h, e, "stream", ack)
				e.want(h.sendFrame(reset))
			}
			h.wantNothing()
		})
	}
}

// TestHarnessGone: when a harness goes, its streams that do not acknowledge are reset at
// once, the others after the grace time.
func TestHarnessGone(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d servers", servers), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			cfg := settings{Grace: 300 * time.Millisecond}
			s := c.server(cfg)
			other := s
			if servers == 2 {
				other = c.server(cfg)
			}
			e, h := s.executor(), other.harness()
			opened(h, e, "plain", 0)
			opened(h, e, "acknowledged", 1)
			gone := time.Now()
			h.socket.Close()
			e.wantReset("plain", resetHarnessGone)
			e.sendFrame(acked(data("acknowledged", 1, "into the void"), 1))
			e.wantReset("acknowledged", resetHarnessGone)
			if waited := time.Since(gone); waited < cfg.Grace {
				t.Errorf("reset after %v, grace time is %v", waited, cfg.Grace)
			}
			for _, ts := range c.servers {
				c.eventually("the routes are forgotten", func() bool { return ts.metrics.Streams.Load() == 0 })
			}
		})
	}
}

// TestAcknowledgesFromTheHandshake: a stream waits for its ends as soon as both have said
// in their handshakes that they acknowledge, even if they have acknowledged nothing yet.
func TestAcknowledgesFromTheHandshake(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d servers", servers), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			first, last := c.pair(servers, settings{})
			e, h := first.executor(), last.harness()
			says := handshake("")
			says.AckBits = frame.WillAcknowledge
			shake := func(stream string, fromHarness, fromExecutor frame.Frame) {
				fromHarness.StreamID, fromExecutor.StreamID = []byte(stream), []byte(stream)
				e.want(h.sendFrame(resume(stream)))
				e.want(h.sendFrame(fromHarness))
				h.want(e.sendFrame(fromExecutor))
			}
			shake("plain", handshake(""), handshake(""))
			shake("half", says, handshake(""))
			shake("stream", says, says)
			h.socket.Close()
			resets := map[string]bool{}
			for range 2 {
				var f frame.Frame
				if err := frame.Decode(e.receive(), &f); err != nil || f.Body != frame.Reset {
					t.Fatalf("got %v, %v; want a reset", f, err)
				}
				resets[string(f.StreamID)] = true
			}
			if !resets["plain"] || !resets["half"] {
				t.Errorf("reset were %v", resets)
			}
			again := last.harness()
			f := resume("stream")
			f.NextSeq = 1
			e.want(again.sendFrame(f))
			exchange(again, e, "stream", 1)
			e.wantNothing()
		})
	}
}

// TestAttachAgain: a harness that acknowledges comes back to its stream, at the
// same or at another server, also while its old websocket seems to be open.
func TestAttachAgain(t *testing.T) {
	t.Parallel()
	for _, old := range []string{"closed", "open"} {
		for _, places := range [][3]int{{0, 0, 0}, {0, 1, 1}, {0, 0, 1}, {0, 1, 0}, {0, 1, 2}} {
			t.Run(fmt.Sprintf("%s, executor at %d, harness from %d to %d", old, places[0], places[1], places[2]), func(t *testing.T) {
				t.Parallel()
				c := newCluster(t)
				var servers []*relayServer
				for range 3 {
					servers = append(servers, c.server(settings{}))
				}
				e := servers[places[0]].executor()
				h := servers[places[1]].harness()
				opened(h, e, "stream", 1)
				if old == "closed" {
					h.socket.Close()
					c.eventually("the harness is gone", func() bool { return servers[places[1]].metrics.Harnesses.Load() == 0 })
				}
				again := servers[places[2]].harness()
				e.want(again.sendFrame(acked(resume("stream"), 1)))
				exchange(again, e, "stream", 1)
				h.wantEnd()
				exchange(again, e, "stream", 1)
				e.wantNothing()
				c.eventually("there is one route at each end", func() bool {
					var n int64
					for _, s := range servers {
						n += s.metrics.Streams.Load()
					}
					want := int64(2)
					if places[0] == places[2] {
						want = 1
					}
					return n == want
				})
			})
		}
	}
}

// TestExecutorNewest: the newest websocket of an executor takes the place of the older
// one, which is closed. Streams that do not acknowledge are reset.
func TestExecutorNewest(t *testing.T) {
	t.Parallel()
	for _, places := range [][3]int{{0, 0, 0}, {0, 1, 0}, {0, 1, 1}, {0, 0, 1}, {0, 1, 2}} {
		t.Run(fmt.Sprintf("executor from %d to %d, harness at %d", places[0], places[1], places[2]), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			var servers []*relayServer
			for range 3 {
				servers = append(servers, c.server(settings{}))
			}
			old := servers[places[0]].executor()
			plain, mixed := servers[places[2]].harness(), servers[places[2]].harness()
			opened(plain, old, "plain", 0)
			opened(mixed, old, "other plain", 0)
			opened(mixed, old, "acknowledged", 1)

			e := servers[places[1]].dial(servers[places[1]].ticket(ticket.Executor))
			// Frames that the executor sends at once are not lost, wherever the
			// harness is.
			repeated := [][]byte{e.sendFrame(acked(resume("acknowledged"), 1)), e.sendFrame(acked(data("acknowledged", 1, "again"), 1))}
			old.wantEnd()
			plain.wantEnd()
			// The reset may come before, after or between.
			reset := (&frame.Frame{StreamID: []byte("other plain"), Body: frame.Reset, Reason: []byte(resetExecutorGone)}).Append(nil)
			var resets int
			for range len(repeated) + 1 {
				got := mixed.receive()
				switch {
				case bytes.Equal(got, reset):
					resets++
				case len(repeated) > 0 && bytes.Equal(got, repeated[0]):
					repeated = repeated[1:]
				default:
					t.Fatalf("got %s", printable(got))
				}
			}
			if resets != 1 || len(repeated) != 0 {
				t.Fatalf("%d resets, %d frames are missing", resets, len(repeated))
			}
			c.waitOnline(servers[places[1]].node)
			exchange(mixed, e, "acknowledged", 1)
			exchange(mixed, e, "acknowledged", 1)
			again := servers[places[2]].harness()
			opened(again, e, "new", 0)
		})
	}
}

// TestExecutorGone: when the executor goes, a harness's websocket without streams that
// acknowledge is closed. One with such streams waits for the executor.
func TestExecutorGone(t *testing.T) {
	t.Parallel()
	for _, places := range [][3]int{{0, 0, 0}, {0, 1, 0}, {0, 1, 1}, {0, 0, 1}, {0, 1, 2}} {
		t.Run(fmt.Sprintf("executor at %d, harness at %d, executor back at %d", places[0], places[2], places[1]), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			var servers []*relayServer
			for range 3 {
				servers = append(servers, c.server(settings{}))
			}
			e := servers[places[0]].executor()
			idle, plain, patient := servers[places[2]].harness(), servers[places[2]].harness(), servers[places[2]].harness()
			opened(plain, e, "plain", 0)
			opened(patient, e, "acknowledged", 1)
			c.eventually("the server has all three", func() bool { return servers[places[2]].metrics.Harnesses.Load() == 3 })
			e.socket.Close()
			plain.wantEnd()
			idle.wantEnd()
			c.eventually("the store knows", func() bool {
				_, online, err := c.st.Online(t.Context(), c.environmentID)
				return err == nil && !online
			})
			before := c.dropped()
			patient.sendFrame(acked(data("acknowledged", 1, "lost"), 1))
			c.eventually("it is lost", func() bool { return c.dropped() > before })

			e = servers[places[1]].executor()
			patient.want(e.sendFrame(acked(resume("acknowledged"), 1)))
			// The server of the harness may get the executor's frames before it
			// hears where they come from.
			up := acked(data("acknowledged", 2, "up"), 1)
			e.until(up.Append(nil), func() { patient.sendFrame(up) })
			patient.want(e.sendFrame(acked(data("acknowledged", 2, "down"), 1)))
		})
	}
}

// TestExecutorStaysAway: a harness's websocket with streams that acknowledge is closed when
// the executor has not come back within the grace time.
func TestExecutorStaysAway(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d servers", servers), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			const grace = 300 * time.Millisecond
			first, last := c.pair(servers, settings{Grace: grace})
			e, patient := first.executor(), last.harness()
			opened(patient, e, "acknowledged", 1)
			gone := time.Now()
			e.socket.Close()
			patient.wantEnd()
			if waited := time.Since(gone); waited < grace {
				t.Errorf("closed after %v, grace time is %v", waited, grace)
			}
		})
	}
}

// TestUnknownResume: an executor resumes a stream that no server knows, since the one that
// did has died. Without a harness the stream is reset after the grace time; a harness
// that comes before gets the frames that were held for it.
func TestUnknownResume(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.server(settings{Grace: 200 * time.Millisecond})
	e := s.executor()
	e.sendFrame(resume("orphan"))
	e.wantReset("orphan", resetHarnessGone)

	s = c.server(settings{})
	e = s.executor()
	e.sendFrame(resume("found"))
	held := e.sendFrame(acked(data("found", 3, "kept"), 2))
	h := s.harness()
	e.want(h.sendFrame(acked(resume("found"), 2)))
	h.want((&frame.Frame{StreamID: []byte("found"), Body: frame.Resume}).Append(nil))
	h.want(held)
	exchange(h, e, "found", 1)
}
