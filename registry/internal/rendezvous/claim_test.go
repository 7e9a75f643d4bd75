package rendezvous

import (
	"bytes"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/test/rig"
)

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
		t.Run(name, func(t *testing.T) {
			oneAndTwo(t, func(c *cluster, servers int) {
				first, last := c.pair(servers, settings{})
				e, h, strange := first.executor(), last.harness(), last.strange()
				opened(h, e, "good", 0)
				bad := last.end(strange)
				attempt := func(stream string) (passed bool) {
					e.want(bad.sendFrame(resume(stream)))
					bad.sendFrame(handshake(stream))
					got := e.receive()
					if !bytes.Equal(got, appended(handshake(stream))) && !bytes.Equal(got, appended(reset(stream, resetHandshakes))) {
						c.t.Fatalf("the executor got %q", printable(got))
					}
					return bytes.Equal(got, appended(handshake(stream)))
				}
				for n := range maxFailed {
					stream := fmt.Sprint("bad ", n)
					if !attempt(stream) {
						c.t.Fatalf("it was stopped after %d handshakes, want %d", n, maxFailed)
					}
					fail(e, bad, stream)
				}
				rig.Is(c.t, attempt("one too many"), false, "a handshake is passed on after %d have failed", maxFailed)
				bad.wantEnd()
				exchange(h, e, "good", 0)
				opened(h, e, "another", 0)

				bad = last.end(strange)
				rig.Is(c.t, attempt("with a new websocket"), false, "a new websocket helps")
				bad.wantEnd()
				opened(h, e, "and another", 0)

				time.Sleep(maxFailed * failedFor) // it is not locked out for ever
				bad = last.end(strange)
				rig.Is(c.t, attempt("later"), true, "a handshake is passed on later")
			})
		})
	}
}

// TestManyHandshakes: a principal may have some handshakes under way at once, and
// any number one after another, as long as they are answered.
func TestManyHandshakes(t *testing.T) {
	oneAndTwo(t, func(c *cluster, servers int) {
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
		opened(last.stranger(), e, "of another", 0)
		one.want(e.sendFrame(handshake("0")))
		begin(two, "now there is room")
	})
}

// TestShareOfAnExecutor: one principal cannot take all streams of an executor,
// with however many websockets.
func TestShareOfAnExecutor(t *testing.T) {
	oneAndTwo(t, func(c *cluster, servers int) {
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
		opened(last.stranger(), e, "of another", 0)
		e.want(h.sendFrame(reset(fmt.Sprint(maxPrincipalStreams-1), "done")))
		e.want(beyond.sendFrame(resume("beyond")))
	})
}

// TestClaimForgets: each second one failed handshake is forgotten, and claims that count
// nothing are dropped when a new one is made.
func TestClaimForgets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &meeting{rs: &Routes{}}
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
		for _, tt := range []struct {
			after time.Duration
			want  int
		}{{0, maxFailed}, {5*failedFor + failedFor/2, 5}, {failedFor / 2, 1}} {
			time.Sleep(tt.after)
			rig.Is(t, fails(), tt.want, "handshakes that could fail after another %v", tt.after)
		}
		m.unclaimLocked(rt)
		m.claimLocked("second")
		rig.Is(t, len(m.claims), 2, "claims")
		time.Sleep(maxFailed * failedFor)
		m.claimLocked("third")
		rig.Is(t, len(m.claims), 1, "claims that hold something")
	})
}
