package rendezvous

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/frame"
)

// TestSlowHarness: a harness that does not read loses its stream after a while, if the
// stream does not acknowledge. If it does, frames are lost and the stream goes on.
// Streams of other harnesses are not harmed.
func TestSlowHarness(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{1, 2} {
		for _, ack := range []uint32{0, 1} {
			t.Run(fmt.Sprintf("%d servers, ack %d", servers, ack), func(t *testing.T) {
				t.Parallel()
				c := newCluster(t)
				s, other := c.pair(servers, settings{})
				s.patience, other.patience = 300*time.Millisecond, 300*time.Millisecond
				e, h := s.executor(), other.harness()
				opened(h, e, "quick", ack)
				slow := other.dialBuffered(other.url(other.ticket(ticket.Harness)), 0)
				opened(slow, e, "slow", ack)

				payload := strings.Repeat("x", 61_000)
				before := c.dropped()
				// No more than it takes: who reads nothing for 90 s loses its websocket.
				for n := 0; len(e.messages) == 0 && c.dropped() == before; n++ {
					if n == 2000 {
						t.Fatalf("%d frames are not too much", n)
					}
					e.sendFrame(acked(data("slow", uint32(n), payload), ack))
					if err := e.socket.Flush(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if ack == 0 {
					e.wantReset("slow", resetTooSlow)
					exchange(h, e, "quick", ack)
					return
				}
				exchange(h, e, "quick", ack)
				e.wantNothing()
				last := acked(data("slow", 1000, "last"), ack)
				slow.until(last.Append(nil), func() { e.sendFrame(last) })
				e.want(slow.sendFrame(last))
			})
		}
	}
}

// TestStuckHarness: a harness that neither reads nor acknowledges delays no stream of
// another harness, of its own principal or another one, however patient the server is and
// whether the other one was there before or comes while the executor is held up. What it
// does not read waits, and is counted, until there is too much of it: then its stream is
// reset.
func TestStuckHarness(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{1, 2} {
		for _, same := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d servers, same principal %v", servers, same), func(t *testing.T) {
				t.Parallel()
				c := newCluster(t)
				s, other := c.pair(servers, settings{})
				s.patience, other.patience = time.Hour, time.Hour
				e := s.executor()
				slow := other.ticket(ticket.Harness)
				slow.Principal = c.principal(store.Key{Role: string(ticket.Harness), Environments: "*"})
				stuck := other.dialBuffered(other.url(slow), 0)
				opened(stuck, e, "stuck", 0)
				payload := strings.Repeat("x", 61_000)
				flood := func(from, to uint32) {
					for n := from; n < to; n++ {
						e.trySend(data("stuck", n, payload))
					}
				}
				// Alone it holds up the executor, so that nothing is lost.
				waiting := s.limits.Share(slow.Principal)
				flood(0, 300) // 18 MB
				c.eventually("the executor is held up", func() bool {
					m := s.find(c.registration.ID)
					defer s.leave(m)
					m.mu.Lock()
					defer m.mu.Unlock()
					return m.stirred != nil
				})
				if n := waiting.Used(); n > laneLimit+2*frame.MaxMessage {
					t.Errorf("%d bytes wait of a harness that is alone", n)
				}

				k := other.ticket(ticket.Harness)
				if same {
					k = slow
				}
				innocent := other.dial(k)
				opened(innocent, e, "innocent", 0) // behind a part of the 18 MB
				exchange(innocent, e, "innocent", 0)
				if n := waiting.Used(); n < laneLimit {
					t.Errorf("%d bytes wait", n)
				}
				// No more than it takes, see TestSlowHarness.
				for n := uint32(300); len(e.messages) == 0 && n < 2000; n += 50 {
					flood(n, n+50)
					if err := e.socket.Flush(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				behind := e.sendFrame(data("innocent", 1, "behind all that"))
				e.wantReset("stuck", resetTooSlow)
				innocent.want(behind)
				exchange(innocent, e, "innocent", 0)
				stuck.socket.Close()
				c.eventually("what waited is given back", func() bool { return waiting.Used() == 0 })
			})
		}
	}
}

// TestLateReset: the reset by which an executor ends a stream comes after the frames that
// wait for the harness.
func TestLateReset(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d servers", servers), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			s, other := c.pair(servers, settings{})
			s.patience, other.patience = time.Hour, time.Hour
			other.pong = unread
			e, h := s.executor(), other.harness()
			opened(h, e, "innocent", 0)
			late := other.dialBuffered(other.url(other.ticket(ticket.Harness)), 0)
			opened(late, e, "late", 0)
			payload := strings.Repeat("x", 61_000)
			const frames = 240 // 15 MB: more than sockets, lane and window hold
			for n := range uint32(frames) {
				e.sendFrame(data("late", n, payload))
			}
			e.sendFrame(reset("late", "done"))
			h.want(e.sendFrame(data("innocent", 1, "behind all that")))
			for n := range uint32(frames) {
				late.want(appended(data("late", n, payload)))
			}
			late.want(appended(reset("late", "done")))
			c.eventually("the route is forgotten", func() bool { return s.metrics.Streams.Load() == 1 && other.metrics.Streams.Load() == 1 })
		})
	}
}

// TestStuckExecutor: the websocket of an executor takes nothing any more, and more frames
// come for it than can wait. The stream goes on with the executor's next websocket.
func TestStuckExecutor(t *testing.T) {
	t.Parallel()
	for _, places := range [][3]int{{0, 0, 0}, {0, 1, 0}, {0, 1, 1}, {0, 0, 1}, {0, 1, 2}} {
		t.Run(fmt.Sprintf("executor from %d to %d, harness at %d", places[0], places[1], places[2]), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			var servers []*relayServer
			for range 3 {
				servers = append(servers, c.server(settings{}))
			}
			first := servers[places[0]]
			stuck := first.dialBuffered(first.url(first.ticket(ticket.Executor)), 0)
			c.waitOnline(first.node)
			h := servers[places[2]].harness()
			opened(h, stuck, "stream", 1)
			payload := strings.Repeat("x", 61_000)
			before := c.dropped()
			for n := 0; c.dropped() == before; n++ { // until frames are lost, some 20 MB
				if n == 2000 {
					t.Fatalf("%d frames are not too much", n)
				}
				h.sendFrame(acked(data("stream", uint32(n), payload), 1))
				if err := h.socket.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			e := servers[places[1]].dial(servers[places[1]].ticket(ticket.Executor))
			h.want(e.sendFrame(acked(resume("stream"), 1)))
			last := acked(data("stream", 1000, "last"), 1)
			e.until(last.Append(nil), func() { h.sendFrame(last) })
			h.want(e.sendFrame(last))
		})
	}
}

// TestHoldUp: an end that reads slowly holds up the sender of a stream of which not both
// ends acknowledge, and gets every frame. Such a stream is reset as soon as the websocket
// of either end has ended.
func TestHoldUp(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{1, 2} {
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
			t.Run(fmt.Sprintf("%d servers, %s", servers, tt.name), func(t *testing.T) {
				t.Parallel()
				c := newCluster(t)
				s, other := c.pair(servers, settings{Grace: time.Hour})
				s.patience, other.patience = time.Hour, time.Hour
				e := s.dialBuffered(s.url(s.ticket(ticket.Executor)), 0)
				c.waitOnline(s.node)
				h := other.dialBuffered(other.url(other.ticket(ticket.Harness)), 0)
				open := func() {
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
				const frames = 800 // 49 MB: more than sockets, lanes and window hold
				payload := strings.Repeat("x", 61_000)
				for n := range frames {
					from.trySend(acked(data("stream", uint32(n), payload), ack))
				}
				pause := time.NewTicker(200 * time.Microsecond)
				defer pause.Stop()
				for n := range frames {
					<-pause.C
					var f frame.Frame
					if got := to.receive(); frame.Decode(got, &f) != nil || f.Seq != uint32(n) {
						t.Fatalf("got %s, want frame %d", printable(got), n)
					}
				}
				exchange(h, e, "stream", 0)

				gone := time.Now()
				h.socket.Close()
				e.wantReset("stream", resetHarnessGone)
				h = other.dialBuffered(other.url(other.ticket(ticket.Harness)), 0)
				open()
				e.socket.Close()
				h.wantEnd()
				if took := time.Since(gone); took > soon/2 {
					t.Errorf("the ends were told after %v", took)
				}
			})
		}
	}
}
