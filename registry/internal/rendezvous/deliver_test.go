package rendezvous

import (
	"fmt"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/test/rig"
)

// TestSlowHarness: a harness that does not read loses its stream after a while, if the
// stream does not acknowledge. If it does, frames are lost and the stream goes on.
// Streams of other harnesses are not harmed.
func TestSlowHarness(t *testing.T) {
	t.Parallel()
	for _, ack := range []uint32{0, 1} {
		t.Run(fmt.Sprint("ack ", ack), func(t *testing.T) {
			oneAndTwo(t, func(c *cluster, servers int) {
				s, other := c.pair(servers, settings{})
				e, h := s.executor(), other.harness()
				opened(h, e, "quick", ack)
				slow := other.slowEnd(other.ticket(ticket.Harness))
				opened(slow, e, "slow", ack)
				before, began := c.dropped(), time.Now()
				for n := range uint32(tooMuch) {
					e.sendFrame(acked(data("slow", n, long), ack))
				}
				exchange(h, e, "quick", ack)
				if ack == 0 {
					e.wantReset("slow", resetTooSlow)
					rig.Is(c.t, min(time.Since(began), defaultPatience), defaultPatience, "the patience, at least")
					exchange(h, e, "quick", ack)
					return
				}
				c.settles("frames are lost", func() bool { return c.dropped() > before })
				e.wantNothing()
				last := acked(data("slow", 1000, "last"), ack)
				slow.arrives(e, last)
				e.want(slow.sendFrame(last))
			})
		})
	}
}

// TestStuckHarness: a harness that neither reads nor acknowledges delays no stream of
// another harness, of its own principal or another one, whether the other one was there before or
// comes while the executor is held up. What it does not read waits, and is counted, until there is
// too much of it: then its stream is reset, however patient the server is.
func TestStuckHarness(t *testing.T) {
	t.Parallel()
	for _, same := range []bool{true, false} {
		t.Run(fmt.Sprintf("same principal %v", same), func(t *testing.T) {
			oneAndTwo(t, func(c *cluster, servers int) {
				s, other := c.pair(servers, settings{})
				e, slow, began := s.executor(), other.strange(), time.Now()
				stuck := other.slowEnd(slow)
				opened(stuck, e, "stuck", 0)
				flood := func(from, to uint32) {
					for n := from; n < to; n++ {
						e.trySend(data("stuck", n, long))
					}
				}
				// Alone it holds up the executor, so that nothing is lost.
				waiting := s.limits.Share(slow.Principal)
				flood(0, 300) // 18 MB
				m := s.seated().meeting
				c.settles("the executor is held up", func() bool {
					m.mu.Lock()
					defer m.mu.Unlock()
					return m.stirred != nil
				})
				n := waiting.Used()
				rig.Is(c.t, n > laneLimit+2*frame.MaxMessage, false, "%d bytes wait of a harness that is alone", n)

				k := other.ticket(ticket.Harness)
				if same {
					k = slow
				}
				innocent := other.end(k)
				opened(innocent, e, "innocent", 0) // behind a part of the 18 MB
				exchange(innocent, e, "innocent", 0)
				rig.Is(c.t, min(waiting.Used(), laneLimit), laneLimit, "bytes that wait, at least")
				flood(300, 300+(maxLate+hopWindow)/61_000)
				behind := e.sendFrame(data("innocent", 1, "behind all that"))
				e.wantReset("stuck", resetTooSlow)
				innocent.want(behind)
				exchange(innocent, e, "innocent", 0)
				rig.Is(c.t, time.Since(began) < defaultPatience, true, "it took less than the patience: %v", time.Since(began))
				stuck.socket.Close()
				c.settles("what waited is given back", func() bool { return waiting.Used() == 0 })
			})
		})
	}
}

// TestLateReset: the reset by which an executor ends a stream comes after the frames that
// wait for the harness.
func TestLateReset(t *testing.T) {
	oneAndTwo(t, func(c *cluster, servers int) {
		s, other := c.pair(servers, settings{})
		e, h := s.executor(), other.harness()
		opened(h, e, "innocent", 0)
		late := other.slowEnd(other.ticket(ticket.Harness))
		opened(late, e, "late", 0)
		for n := range uint32(tooMuch) {
			e.sendFrame(data("late", n, long))
		}
		e.sendFrame(reset("late", "done"))
		h.want(e.sendFrame(data("innocent", 1, "behind all that")))
		for n := range uint32(tooMuch) {
			late.want(appended(data("late", n, long)))
		}
		late.wantReset("late", "done")
		c.settles("the route is forgotten", func() bool { return s.metrics.Streams.Load() == 1 && other.metrics.Streams.Load() == 1 })
	})
}

// TestStuckExecutor: the websocket of an executor takes nothing any more, and more frames
// come for it than can wait. The stream goes on with the executor's next websocket.
func TestStuckExecutor(t *testing.T) {
	atPlaces(t, func(c *cluster, places [3]*relayServer) {
		stuck := places[0].slowEnd(places[0].ticket(ticket.Executor))
		c.waitOnline(places[0])
		h := places[2].harness()
		opened(h, stuck, "stream", 1)
		before := c.dropped()
		for n := range uint32(tooMuch) {
			h.sendFrame(acked(data("stream", n, long), 1))
		}
		c.settles("frames are lost", func() bool { return c.dropped() > before })
		e := places[1].end(places[1].ticket(ticket.Executor))
		h.want(e.sendFrame(acked(resume("stream"), 1)))
		last := acked(data("stream", 1000, "last"), 1)
		e.arrives(h, last)
		h.want(e.sendFrame(last))
	})
}

// TestHoldUp: an end that reads slowly holds up the sender of a stream of which not both
// ends acknowledge, and gets every frame. Such a stream is reset as soon as the websocket
// of either end has ended.
func TestHoldUp(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name              string
		harness, executor uint32 // what they acknowledge
		down              bool   // the executor floods the harness
	}{
		{"nobody acknowledges, down", 0, 0, true},
		{"nobody acknowledges, up", 0, 0, false},
		{"harness acknowledges", 1, 0, true},
		{"executor acknowledges", 0, 1, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			oneAndTwo(t, func(c *cluster, servers int) {
				s, other := c.pair(servers, settings{})
				e := s.slowEnd(s.ticket(ticket.Executor))
				c.waitOnline(s)
				var h *end
				open := func() {
					h = other.slowEnd(other.ticket(ticket.Harness))
					e.want(h.sendFrame(resume("stream")))
					e.want(h.sendFrame(handshake("stream")))
					h.want(e.sendFrame(handshake("stream")))
					e.want(h.sendFrame(acked(data("stream", 0, "up"), tt.harness)))
					h.want(e.sendFrame(acked(data("stream", 0, "down"), tt.executor)))
				}
				open()
				from, to, ack := h, e, tt.harness
				if tt.down {
					from, to, ack = e, h, tt.executor
				}
				for n := range uint32(tooMuch) {
					from.trySend(acked(data("stream", n, long), ack))
				}
				for n := range uint32(tooMuch) {
					if n%20 == 0 {
						time.Sleep(defaultPatience / 5)
					}
					var f frame.Frame
					if got := to.receive(); frame.Decode(got, &f) != nil || f.Seq != n {
						c.t.Fatalf("got %s, want frame %d", printable(got), n)
					}
				}
				exchange(h, e, "stream", 0)

				gone := time.Now()
				h.socket.Close()
				e.wantReset("stream", resetHarnessGone)
				open()
				e.socket.Close()
				h.wantEnd()
				rig.Is(c.t, max(time.Since(gone), time.Second), time.Second, "the ends were told after, at most")
			})
		})
	}
}
