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
	"github.com/execagent/execagent/test/rig"
)

// TestRoute: frames of many streams go both ways as they are and in order.
func TestRoute(t *testing.T) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) {
		oneAndTwo(t, testRoute)
	})
	t.Run("NATS", func(t *testing.T) {
		t.Parallel()
		c, _ := natsCluster(t)
		testRoute(c, 2)
	})
}

func testRoute(c *cluster, servers int) {
	forExecutor, forHarnesses := c.pair(servers, settings{})
	e := forExecutor.executor()
	const streams, frames = 4, 40 // fewer than fill a lane, since a full one loses frames
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
		rig.Must(c.t, frame.Decode(got, &f))
		stream := string(f.StreamID)
		if want := sent[stream][atExecutor[stream]]; !bytes.Equal(got, want) {
			c.t.Fatalf("executor got %s as number %d", printable(got), atExecutor[stream])
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
	oneAndTwo(t, func(c *cluster, servers int) {
		s, other := c.pair(servers, settings{})
		stranger := other.strange()
		e, h := s.executor(), s.harness()
		opened(h, e, "mine", 0)
		opened(h, e, "acknowledged", 1)

		// Frames of the streams of others.
		thief := other.end(stranger)
		opened(thief, e, "yours", 0)
		for _, f := range []frame.Frame{
			data("mine", 1, "forged"), reset("mine", "forged"), data("nobody's", 0, "forged"),
			{StreamID: []byte("mine"), Body: frame.Ack, Ack: 7}, {StreamID: []byte("mine"), Body: frame.Heartbeat},
		} {
			thief.sendFrame(f)
		}
		e.want(thief.sendFrame(data("yours", 1, "fence")))
		exchange(h, e, "mine", 0)
		thief.wantNothing()

		// Frames that open a stream; another harness of the same principal may not have one that
		// does not acknowledge either.
		opened(h, e, "plain", 0)
		own := other.ticket(ticket.Harness)
		for _, tt := range []struct {
			who    ticket.Ticket
			stream string
			opens  frame.Frame
		}{
			{stranger, "mine", resume("mine")}, {stranger, "mine", handshake("mine")},
			{stranger, "acknowledged", resume("acknowledged")}, {stranger, "acknowledged", handshake("acknowledged")},
			{own, "plain", resume("plain")},
		} {
			thief := other.end(tt.who)
			thief.sendFrame(tt.opens)
			thief.wantEnd()
			exchange(h, e, tt.stream, 1)
		}

		// The same name at another registration is another stream.
		reg := c.register("other")
		at := func(role ticket.Role) *end {
			k := other.ticket(role)
			k.EnvironmentID, k.RegistrationID = "other", reg.ID
			return other.end(k)
		}
		e2 := at(ticket.Executor)
		c.settles("it is online", func() bool { _, ok, err := c.st.Online(c.t.Context(), "other"); return ok && err == nil })
		h2 := at(ticket.Harness)
		opened(h2, e2, "mine", 0)
		e2.sendFrame(data("acknowledged", 9, "forged"))
		exchange(h2, e2, "mine", 0)
		exchange(h, e, "mine", 0)
		h.wantNothing()
		e.wantNothing()
	})
}

// TestInvalidFrames: a message that is not a frame is dropped and harms no stream.
func TestInvalidFrames(t *testing.T) {
	bubble(t, func(c *cluster) {
		s := c.server(settings{})
		e, h := s.executor(), s.harness()
		opened(h, e, "stream", 0)
		tooLong := resume(strings.Repeat("x", frame.MaxStreamID+1))
		for _, from := range []*end{h, e} {
			for _, bad := range [][]byte{{}, {0xff}, []byte("text"), appended(tooLong), {0x08, 0x02}} {
				from.send(bad)
			}
		}
		exchange(h, e, "stream", 0)
		opened(h, e, strings.Repeat("x", frame.MaxStreamID), 0)
	})
}

func TestTooManyStreams(t *testing.T) {
	bubble(t, func(c *cluster) {
		s := c.server(settings{Limits: store.Limits{Streams: maxHarnessStreams + 1}})
		e, h, another := s.executor(), s.harness(), s.harness()
		for i := range maxHarnessStreams {
			opened(h, e, fmt.Sprint(i), 0)
		}
		h.sendFrame(resume("one too many"))
		h.wantReset("one too many", resetRefused)
		opened(another, e, "last of the principal", 0)
		another.sendFrame(resume("beyond"))
		another.wantReset("beyond", resetRefused)
		// A place is free as soon as its stream has ended.
		e.want(h.sendFrame(reset("0", "done")))
		opened(another, e, "beyond", 0)
	})
}

func TestHarnessWithoutStream(t *testing.T) {
	bubble(t, func(c *cluster) {
		s := c.server(settings{})
		e, h := s.executor(), s.harness()
		opened(h, e, "stream", 0)
		for began, without := time.Now(), s.harness(); ; without = h {
			without.wantEnd()
			rig.Is(c.t, time.Since(began), defaultOpening, "it ended after")
			if without == h {
				break
			}
			exchange(h, e, "stream", 0)
			began = time.Now()
			h.want(e.sendFrame(reset("stream", "done")))
		}
	})
}

// TestReset: a reset of either end is passed on and ends the route; the id can be
// used again at once.
func TestReset(t *testing.T) {
	oneAndTwo(t, func(c *cluster, servers int) {
		s, other := c.pair(servers, settings{})
		e, h := s.executor(), other.harness()
		for _, ack := range []uint32{0, 1} {
			opened(h, e, "stream", ack)
			e.want(h.sendFrame(reset("stream", "any")))
			opened(h, e, "stream", ack)
			h.want(e.sendFrame(reset("stream", "any")))
			opened(h, e, "stream", ack)
			e.want(h.sendFrame(reset("stream", "any")))
		}
		h.wantNothing()
	})
}

// TestHarnessGone: when a harness goes, its streams that do not acknowledge are reset at
// once, the others after the grace time.
func TestHarnessGone(t *testing.T) {
	oneAndTwo(t, func(c *cluster, servers int) {
		s, other := c.pair(servers, settings{})
		e, h := s.executor(), other.harness()
		opened(h, e, "plain", 0)
		opened(h, e, "acknowledged", 1)
		gone := time.Now()
		h.socket.Close()
		e.wantReset("plain", resetHarnessGone)
		rig.Is(c.t, max(time.Since(gone), time.Second), time.Second, "reset after, at most")
		e.sendFrame(acked(data("acknowledged", 1, "into the void"), 1))
		e.wantReset("acknowledged", resetHarnessGone)
		rig.Is(c.t, time.Since(gone), s.grace, "it was reset after")
		c.settles("the routes are forgotten", func() bool { return s.metrics.Streams.Load()+other.metrics.Streams.Load() == 0 })
	})
}

// TestAcknowledgesFromTheHandshake: a stream waits for its ends as soon as both have said
// in their handshakes that they acknowledge, even if they have acknowledged nothing yet.
func TestAcknowledgesFromTheHandshake(t *testing.T) {
	oneAndTwo(t, func(c *cluster, servers int) {
		first, last := c.pair(servers, settings{})
		e, h := first.executor(), last.harness()
		shake := func(stream string, harness, executor bool) {
			says := func(acknowledges bool) frame.Frame {
				f := handshake(stream)
				if acknowledges {
					f.AckBits = frame.WillAcknowledge
				}
				return f
			}
			e.want(h.sendFrame(resume(stream)))
			e.want(h.sendFrame(says(harness)))
			h.want(e.sendFrame(says(executor)))
		}
		shake("plain", false, false)
		shake("half", true, false)
		shake("stream", true, true)
		h.socket.Close()
		resets := map[string]bool{}
		for range 2 {
			var f frame.Frame
			if err := frame.Decode(e.receive(), &f); err != nil || f.Body != frame.Reset {
				c.t.Fatalf("got %v, %v; want a reset", f, err)
			}
			resets[string(f.StreamID)] = true
		}
		rig.Is(c.t, resets["plain"] && resets["half"], true, "reset were both of %v", resets)
		again := last.harness()
		f := resume("stream")
		f.NextSeq = 1
		e.want(again.sendFrame(f))
		exchange(again, e, "stream", 1)
		e.wantNothing()
	})
}

// TestAttachAgain: a harness that acknowledges comes back to its stream, at the
// same or at another server, also while its old websocket seems to be open.
func TestAttachAgain(t *testing.T) {
	t.Parallel()
	for _, open := range []bool{false, true} {
		t.Run(fmt.Sprintf("open %v", open), func(t *testing.T) {
			atPlaces(t, func(c *cluster, places [3]*relayServer) {
				e, h := places[0].executor(), places[1].harness()
				opened(h, e, "stream", 1)
				if !open {
					h.socket.Close()
					c.settles("the harness is gone", func() bool { return places[1].metrics.Harnesses.Load() == 0 })
				}
				again := places[2].harness()
				e.want(again.sendFrame(acked(resume("stream"), 1)))
				exchange(again, e, "stream", 1)
				h.wantEnd()
				exchange(again, e, "stream", 1)
				e.wantNothing()
				c.settles("there is one route at each end", func() bool {
					var n int64
					for _, s := range c.servers {
						n += s.metrics.Streams.Load()
					}
					return places[0] == places[2] && n == 1 || places[0] != places[2] && n == 2
				})
			})
		})
	}
}

// TestExecutorNewest: the newest websocket of an executor takes the place of the older
// one, which is closed. Streams that do not acknowledge are reset.
func TestExecutorNewest(t *testing.T) {
	atPlaces(t, func(c *cluster, places [3]*relayServer) {
		old := places[0].executor()
		plain, mixed := places[2].harness(), places[2].harness()
		opened(plain, old, "plain", 0)
		opened(mixed, old, "other plain", 0)
		opened(mixed, old, "acknowledged", 1)

		e := places[1].end(places[1].ticket(ticket.Executor))
		// Frames that the executor sends at once are not lost, wherever the
		// harness is.
		repeated := [][]byte{e.sendFrame(acked(resume("acknowledged"), 1)), e.sendFrame(acked(data("acknowledged", 1, "again"), 1))}
		old.wantEnd()
		plain.wantEnd()
		// The reset may come before, after or between.
		reset := appended(reset("other plain", resetExecutorGone))
		var resets int
		for range len(repeated) + 1 {
			got := mixed.receive()
			switch {
			case bytes.Equal(got, reset):
				resets++
			case len(repeated) > 0 && bytes.Equal(got, repeated[0]):
				repeated = repeated[1:]
			default:
				c.t.Fatalf("got %s", printable(got))
			}
		}
		if resets != 1 || len(repeated) != 0 {
			c.t.Fatalf("%d resets, %d frames are missing", resets, len(repeated))
		}
		c.waitOnline(places[1])
		exchange(mixed, e, "acknowledged", 1)
		exchange(mixed, e, "acknowledged", 1)
		opened(places[2].harness(), e, "new", 0)
	})
}

// TestExecutorGone: when the executor goes, a harness's websocket without streams that
// acknowledge is closed. One with such streams waits for the executor, for the grace time.
func TestExecutorGone(t *testing.T) {
	atPlaces(t, func(c *cluster, places [3]*relayServer) {
		e := places[0].executor()
		idle, plain, patient := places[2].harness(), places[2].harness(), places[2].harness()
		opened(plain, e, "plain", 0)
		opened(patient, e, "acknowledged", 1)
		e.socket.Close()
		plain.wantEnd()
		idle.wantEnd()
		c.settles("the store knows", func() bool {
			_, online, err := c.st.Online(c.t.Context(), c.environmentID)
			return err == nil && !online
		})
		before := c.dropped()
		patient.sendFrame(acked(data("acknowledged", 1, "lost"), 1))
		c.settles("it is lost", func() bool { return c.dropped() > before })

		e = places[1].executor()
		patient.want(e.sendFrame(acked(resume("acknowledged"), 1)))
		e.arrives(patient, acked(data("acknowledged", 2, "up"), 1))
		patient.want(e.sendFrame(acked(data("acknowledged", 2, "down"), 1)))

		gone := time.Now()
		e.socket.Close()
		patient.wantEnd()
		rig.Is(c.t, time.Since(gone), places[2].grace, "it was closed after")
	})
}

// TestUnknownResume: an executor resumes a stream that no server knows, since the one that
// did has died. Without a harness the stream is reset after the grace time; a harness
// that comes before gets the frames that were held for it.
func TestUnknownResume(t *testing.T) {
	bubble(t, func(c *cluster) {
		s := c.server(settings{})
		e := s.executor()
		e.sendFrame(resume("orphan"))
		e.wantReset("orphan", resetHarnessGone)

		first := e.sendFrame(resume("found"))
		held := e.sendFrame(acked(data("found", 3, "kept"), 2))
		h := s.harness()
		e.want(h.sendFrame(acked(resume("found"), 2)))
		h.want(first)
		h.want(held)
		exchange(h, e, "found", 1)
	})
}
