package rendezvous

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/frame"
)

// stranger connects a harness with a key of its own. again connects another websocket
// with the same key.
func (ts *relayServer) stranger() (e *end, again func() *end) {
	ts.c.t.Helper()
	other := ts.ticket(ticket.Harness)
	other.Principal = ts.c.principal(store.Key{Role: string(ticket.Harness), Environments: "*"})
	return ts.dial(other), func() *end { return ts.dial(other) }
}

func reset(stream, reason string) frame.Frame {
	return frame.Frame{StreamID: []byte(stream), Body: frame.Reset, Reason: []byte(reason)}
}

// TestBadHandshakes: a harness whose handshakes fail loses its websocket. After that none of its
// handshakes reaches the executor until a failed one is forgotten, also on a new websocket. Other
// harnesses of the executor notice nothing.
func TestBadHandshakes(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(e, bad *end, stream string){
		"refused": func(e, bad *end, stream string) {
			bad.want(e.sendFrame(reset(stream, "noise_relay_protocol_error")))
		},
		"given up": func(e, bad *end, stream string) {
			e.want(bad.sendFrame(reset(stream, "never mind")))
		},
	} {
		for _, servers := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s, %d servers", name, servers), func(t *testing.T) {
				t.Parallel()
				c := newCluster(t)
				first, last := c.pair(servers, settings{})
				e, h := first.executor(), last.harness()
				m := first.find(c.registration.ID)
				defer first.leave(m)
				forgets := func(each time.Duration) {
					m.mu.Lock()
					defer m.mu.Unlock()
					first.failedFor = each
				}
				forgets(time.Hour)
				opened(h, e, "good", 0)
				bad, again := last.stranger()
				attempt := func(stream string) {
					bad.sendFrame(resume(stream))
					e.want((&frame.Frame{StreamID: []byte(stream), Body: frame.Resume}).Append(nil))
					bad.sendFrame(handshake(stream))
				}
				arrived := 0
				for {
					stream := fmt.Sprint("bad ", arrived)
					attempt(stream)
					got := e.receive()
					if string(got) != string(appended(handshake(stream))) {
						// The rendezvous has ended the stream instead.
						if string(got) != string(appended(reset(stream, resetHandshakes))) {
							t.Fatalf("the executor got %q", printable(got))
						}
						break
					}
					arrived++
					fail(e, bad, stream)
					if arrived > maxFailed {
						t.Fatalf("%d handshakes have failed, and still they are passed on", arrived)
					}
				}
				if arrived != maxFailed {
					t.Errorf("it was stopped after %d handshakes, want %d", arrived, maxFailed)
				}
				bad.wantEnd()
				exchange(h, e, "good", 0)
				opened(h, e, "another", 0)

				bad = again()
				attempt("with a new websocket")
				e.want(appended(reset("with a new websocket", resetHandshakes)))
				bad.wantEnd()
				opened(h, e, "and another", 0)

				// The bad harness is not locked out for ever.
				forgets(time.Millisecond)
				n := 0
				c.eventually("a handshake is passed on", func() bool {
					bad = again()
					n++
					stream := fmt.Sprint("later ", n)
					attempt(stream)
					return string(e.receive()) == string(appended(handshake(stream)))
				})
			})
		}
	}
}

func appended(f frame.Frame) []byte { return f.Append(nil) }

// TestManyHandshakes: a principal may have some handshakes under way at once, and
// any number one after another, as long as they are answered.
func TestManyHandshakes(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d servers", servers), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			first, last := c.pair(servers, settings{})
			e := first.executor()
			for i := range 3 * maxFailed {
				h := last.harness()
				opened(h, e, fmt.Sprint("answered ", i), 0)
				e.want(h.sendFrame(reset(fmt.Sprint("answered ", i), "done")))
				h.socket.Close()
			}
			begin := func(h *end, stream string) {
				e.want(h.sendFrame(resume(stream)))
				e.want(h.sendFrame(handshake(stream)))
			}
			one, two := last.harness(), last.harness()
			for i := range maxHandshaking {
				begin(one, fmt.Sprint(i))
			}
			e.want(two.sendFrame(resume("one too many")))
			two.sendFrame(handshake("one too many"))
			e.wantReset("one too many", resetHandshakes)
			two.wantReset("one too many", resetHandshakes)
			other, _ := last.stranger()
			opened(other, e, "of another", 0)
			one.want(e.sendFrame(handshake("0")))
			begin(two, "now there is room")
		})
	}
}

// TestShareOfAnExecutor: one principal cannot take all streams of an executor,
// with however many websockets.
func TestShareOfAnExecutor(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d servers", servers), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			first, last := c.pair(servers, settings{})
			e := first.executor()
			var h *end
			for i := range maxPrincipalStreams {
				if i%maxHarnessStreams == 0 {
					h = last.harness()
				}
				e.want(h.sendFrame(resume(fmt.Sprint(i))))
			}
			beyond := last.harness()
			beyond.sendFrame(resume("beyond"))
			beyond.wantReset("beyond", resetRefused)
			other, _ := last.stranger()
			opened(other, e, "of another", 0)
			e.want(h.sendFrame(reset(fmt.Sprint(maxPrincipalStreams-1), "done")))
			e.want(beyond.sendFrame(resume("beyond")))
		})
	}
}

// TestClaimForgets: each second one failed handshake is forgotten, and claims that count
// nothing are dropped when a new one is made.
func TestClaimForgets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &meeting{rs: &Routes{failedFor: failedFor}}
		rt := &route{meeting: m, stream: "stream"}
		m.assignLocked(rt, "bad")
		fails := func() (n int) {
			for {
				if _, failing := m.beginHandshakeLocked(rt); failing {
					return n
				}
				m.endHandshakeLocked(rt, true)
				n++
			}
		}
		if n := fails(); n != maxFailed {
			t.Errorf("%d handshakes could fail, want %d", n, maxFailed)
		}
		time.Sleep(5*failedFor + failedFor/2)
		if n := fails(); n != 5 {
			t.Errorf("%d more could fail 5.5 s later, want 5", n)
		}
		time.Sleep(failedFor / 2)
		if n := fails(); n != 1 {
			t.Errorf("%d more could fail after another half a second, want 1", n)
		}
		m.unclaimLocked(rt)
		m.claimLocked("second")
		if len(m.claims) != 2 {
			t.Errorf("there are %d claims, want both", len(m.claims))
		}
		time.Sleep(maxFailed * failedFor)
		m.claimLocked("third")
		if len(m.claims) != 1 {
			t.Errorf("there are %d claims, want those two gone that hold nothing", len(m.claims))
		}
	})
}
