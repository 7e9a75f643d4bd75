package rendezvous

import (
	"crypto/ed25519"
	"fmt"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/test/rig"
)

// TestExpired: an audit ends the websockets of a key that has expired, and
// leaves the others.
func TestExpired(t *testing.T) {
	bubble(t, func(c *cluster) {
		s := c.server(settings{})
		e, other := s.executor(), s.harness()
		opened(other, e, "other", 0)
		k := s.ticket(ticket.Harness)
		expires := time.Now().Add(90 * time.Second)
		k.Principal = c.principalOf(store.Key{Role: string(ticket.Harness), Environments: "*", Expires: expires})
		h := s.end(k)
		opened(h, e, "stream", 0)
		h.wantEnd()
		late := time.Since(expires)
		rig.Is(c.t, late < 0 || late > auditInterval, false, "the websocket ends %v after its key has expired", late)
		e.wantReset("stream", wire.ResetRevoked)
		e.want(other.sendFrame(data("other", 1, "still here")))
	})
}

// TestRevokedHarness: when a harness's key is revoked, the executor hears that the streams
// of that harness are over for good, also while the harness is away. The streams of
// other harnesses go on.
func TestRevokedHarness(t *testing.T) {
	t.Parallel()
	for _, away := range []bool{false, true} {
		t.Run(fmt.Sprintf("away %v", away), func(t *testing.T) {
			oneAndTwo(t, func(c *cluster, servers int) {
				first, last := c.pair(servers, settings{})
				e, h, other := first.executor(), last.harness(), last.stranger()
				opened(other, e, "another's", 1)
				opened(h, e, "plain", 0)
				opened(h, e, "acknowledged", 1)
				want := map[string]bool{"plain": true, "acknowledged": true}
				if away {
					h.socket.Close()
					e.wantReset("plain", resetHarnessGone)
					delete(want, "plain")
					c.settles("the harness is gone", func() bool { return last.metrics.Harnesses.Load() == 1 })
				}
				c.revoke(c.harnessKey)
				for len(want) > 0 {
					var f frame.Frame
					if err := frame.Decode(e.receive(), &f); err != nil || f.Body != frame.Reset || string(f.Reason) != wire.ResetRevoked || !want[string(f.StreamID)] {
						c.t.Fatalf("got %v %q of %q, %v; want a reset of one of %v", f.Body, f.Reason, f.StreamID, err, want)
					}
					delete(want, string(f.StreamID))
				}
				if !away {
					h.wantEnd()
				}
				exchange(other, e, "another's", 1)
				e.wantNothing()
			})
		})
	}
}

// TestRevokedWhileExecutorIsAway: an executor that resumes a stream, at whichever
// server, hears that its harness was revoked meanwhile.
func TestRevokedWhileExecutorIsAway(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{true, false} { // the servers know that the executor's websocket has ended
		for name, tt := range map[string]struct{ servers, at int }{ // at: where the executor comes back to
			"one server": {1, 0}, "its own of three": {3, 0}, "that of the harness": {3, 1}, "a third one": {3, 2},
		} {
			t.Run(fmt.Sprintf("%s, known %v", name, known), func(t *testing.T) {
				bubble(t, func(c *cluster) {
					for range tt.servers {
						c.server(settings{})
					}
					first, second := c.servers[0], c.servers[min(1, tt.servers-1)]
					e, h, other := first.executor(), second.harness(), second.stranger()
					opened(other, e, "another's", 1)
					opened(h, e, "revoked", 1)
					if known {
						e.socket.Close()
						c.settles("nobody has the executor", func() bool { return !first.isThere() && !second.isThere() })
					}
					c.revoke(c.harnessKey)
					h.wantEnd()
					if !known {
						e.wantReset("revoked", wire.ResetRevoked) // the executor acts as if it had not come
					}
					e = c.servers[tt.at].executor()
					e.trySend(resumed("revoked"))
					e.wantReset("revoked", wire.ResetRevoked)
					e.arrives(other, acked(data("another's", 1, "still here"), 1))
				})
			})
		}
	}
}

// TestNarrowed: an identity that is replaced by one for other environments loses the
// websockets that it may not open any more.
func TestNarrowed(t *testing.T) {
	bubble(t, func(c *cluster) {
		s := c.server(settings{})
		add := func(environments string) {
			c.t.Helper()
			identity := store.Identity{RuntimeID: "agent", PublicKey: make([]byte, ed25519.PublicKeySize), Environments: environments}
			rig.Must(c.t, c.st.AddIdentity(c.t.Context(), identity))
		}
		add("env*")
		c.executorKey = store.AgentPrefix + "agent"
		e := s.executor()
		add("other")
		e.wantEnd()
	})
}

// TestRevokedPrincipalIsTold: an executor hears that a principal has lost its right which
// has no stream there any more, but may have left something: while the executor is
// connected, at whichever server the harness was; and when it comes back and says that it
// has something of that principal, also to a registry that has been started anew.
func TestRevokedPrincipalIsTold(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"connected", "away", "away, restarted"} {
		t.Run(when, func(t *testing.T) {
			oneAndTwo(t, func(c *cluster, servers int) {
				first, last := c.pair(servers, settings{})
				e, h, other := first.executor(), last.harness(), last.strange()
				innocent := last.end(other)
				opened(innocent, e, "another's", 1)
				opened(h, e, "stream", 1)
				e.want(h.sendFrame(reset("stream", "done"))) // what it has left runs on
				of := func(id string) string { return wire.PrincipalStream + first.signer.Pseudonym(c.environmentID, id) }
				says := func(stream string) { e.sendFrame(frame.Frame{StreamID: []byte(stream), Body: frame.Heartbeat}) }
				switch when {
				case "connected":
					c.revoke(c.harnessKey)
				case "away":
					e.socket.Close()
					c.settles("nobody has the executor", func() bool { return !first.isThere() && !last.isThere() })
					c.revoke(c.harnessKey)
					h.wantEnd()
					e = last.executor()
				default:
					for _, s := range c.servers {
						rig.Must(c.t, s.Close())
					}
					c.revoke(c.harnessKey)
					first = c.server(settings{})
					last = first
					e = first.executor()
				}
				if when != "connected" {
					c.fake.Away(true)                     // the answer comes all the same, later
					says(of("key:0123456789abcdef")[:30]) // and what no registry has made
					says(of(other.Principal))
					says(of(c.harnessKey))
					c.settles("nothing is told", func() bool { return len(e.told) == 0 })
					c.fake.Away(false)
				}
				rig.Is(c.t, <-e.told, of(c.harnessKey), "what the executor was told of")
				innocent = last.end(other)
				opened(innocent, e, "new", 1) // nothing is said of the other one
				if len(e.told) != 0 {
					c.t.Errorf("the executor was told of %q", <-e.told)
				}
				// No harness can say it.
				innocent.sendFrame(reset(of(other.Principal), wire.ResetRevoked))
				innocent.sendFrame(resume(of(other.Principal)))
				exchange(innocent, e, "new", 1)
			})
		})
	}
}
