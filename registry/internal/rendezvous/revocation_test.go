package rendezvous

import (
	"crypto/ed25519"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/internal/relay/wire"
)

// TestExpired: an audit ends the websockets of a key that has expired, and
// leaves the others.
func TestExpired(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.server(settings{})
	e, other := s.executor(), s.harness()
	opened(other, e, "other", 0)
	var h *end
	var expires time.Time
	// A machine may be so busy that a key has expired before its websocket is open.
	for life := 2 * time.Second; h == nil; life *= 2 {
		expires = time.Now().Add(life)
		k := s.ticket(ticket.Harness)
		k.Principal = c.principal(store.Key{Role: string(ticket.Harness), Environments: "*", Expires: expires})
		switch ws, err := socket.Dial(t.Context(), s.url(k), nil, socket.Config{}); {
		case err == nil:
			h = newEnd(t, ws, 1<<16)
		case life > soon:
			t.Fatal(err)
		}
	}
	opened(h, e, "stream", 0)
	<-time.After(time.Until(expires))
	s.review(t.Context(), "")
	h.wantEnd()
	e.wantReset("stream", wire.ResetRevoked)
	e.want(other.sendFrame(data("other", 1, "still here")))
}

// TestRevokedHarness: when a harness's key is revoked, the executor hears that the streams
// of that harness are over for good, also while the harness is away. The streams of
// other harnesses go on.
func TestRevokedHarness(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{1, 2} {
		for _, away := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d servers, away %v", servers, away), func(t *testing.T) {
				t.Parallel()
				c := newCluster(t)
				first, last := c.pair(servers, settings{})
				e, h := first.executor(), last.harness()
				other, _ := last.stranger()
				opened(other, e, "another's", 1)
				opened(h, e, "plain", 0)
				opened(h, e, "acknowledged", 1)
				want := map[string]bool{"plain": true, "acknowledged": true}
				if away {
					h.socket.Close()
					e.wantReset("plain", resetHarnessGone)
					delete(want, "plain")
					c.eventually("the harness is gone", func() bool { return last.metrics.Harnesses.Load() == 1 })
				}
				if _, err := c.st.RevokeKey(t.Context(), strings.TrimPrefix(c.harnessKey, store.KeyPrefix)); err != nil {
					t.Fatal(err)
				}
				for len(want) > 0 {
					var f frame.Frame
					if err := frame.Decode(e.receive(), &f); err != nil || f.Body != frame.Reset || string(f.Reason) != wire.ResetRevoked || !want[string(f.StreamID)] {
						t.Fatalf("got %v %q of %q, %v; want a reset of one of %v", f.Body, f.Reason, f.StreamID, err, want)
					}
					delete(want, string(f.StreamID))
				}
				if !away {
					h.wantEnd()
				}
				exchange(other, e, "another's", 1)
				e.wantNothing()
			})
		}
	}
}

// TestRevokedWhileExecutorIsAway: an executor that resumes a stream, at whichever
// server, hears that its harness was revoked meanwhile.
func TestRevokedWhileExecutorIsAway(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		servers, at int  // how many; the index of the one that the executor comes back to
		known       bool // the servers know that the executor's websocket has ended
	}{
		"one server":                     {1, 0, true},
		"one server, not known":          {1, 0, false},
		"its own of three":               {3, 0, true},
		"its own of three, not known":    {3, 0, false},
		"that of the harness":            {3, 1, true},
		"that of the harness, not known": {3, 1, false},
		"a third one":                    {3, 2, true},
		"a third one, not known":         {3, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			for range tt.servers {
				c.server(settings{})
			}
			first, second := c.servers[0], c.servers[min(1, tt.servers-1)]
			e, h := first.executor(), second.harness()
			other, _ := second.stranger()
			opened(other, e, "another's", 1)
			opened(h, e, "revoked", 1)
			if tt.known {
				e.socket.Close()
				c.eventually("nobody has the executor", func() bool {
					for _, ts := range c.servers {
						if ts.isThere(c.registration.ID) {
							return false
						}
					}
					return true
				})
			}
			if _, err := c.st.RevokeKey(t.Context(), strings.TrimPrefix(c.harnessKey, store.KeyPrefix)); err != nil {
				t.Fatal(err)
			}
			h.wantEnd()
			if !tt.known {
				e.wantReset("revoked", wire.ResetRevoked) // the executor acts as if it had not come
			}
			e = c.servers[tt.at].executor()
			e.trySend(acked(frame.Frame{StreamID: []byte("revoked"), Body: frame.Resume, NextSeq: 1}, 1))
			e.wantReset("revoked", wire.ResetRevoked)
			more := acked(data("another's", 1, "still here"), 1)
			e.until(more.Append(nil), func() { other.trySend(more) })
		})
	}
}

// isThere tells whether the executor of a registration is at any server, as far as
// this one knows.
func (rs *Routes) isThere(registrationID string) bool {
	m := rs.find(registrationID)
	if m == nil {
		return false
	}
	defer rs.leave(m)
	return m.online()
}

// TestNarrowed: an identity that is replaced by one for other environments loses the
// websockets that it may not open any more.
func TestNarrowed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.server(settings{})
	add := func(environments string) {
		t.Helper()
		identity := store.Identity{RuntimeID: "agent", PublicKey: make([]byte, ed25519.PublicKeySize), Environments: environments}
		if err := c.st.AddIdentity(t.Context(), identity); err != nil {
			t.Fatal(err)
		}
	}
	add("env*")
	c.executorKey = store.AgentPrefix + "agent"
	e := s.executor()
	add("other")
	e.wantEnd()
}

// TestRevokedPrincipalIsTold: an executor hears that a principal has lost its right which
// has no stream there any more, but may have left something: while the executor is
// connected, at whichever server the harness was; and when it comes back and says that it
// has something of that principal, also to a registry that has been started anew.
func TestRevokedPrincipalIsTold(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{1, 2} {
		for _, when := range []string{"connected", "away", "away, restarted"} {
			t.Run(fmt.Sprintf("%d servers, %s", servers, when), func(t *testing.T) {
				t.Parallel()
				c := newCluster(t)
				first, last := c.pair(servers, settings{})
				e, h := first.executor(), last.harness()
				other := last.ticket(ticket.Harness)
				other.Principal = c.principal(store.Key{Role: string(ticket.Harness), Environments: "*"})
				innocent := last.dial(other)
				opened(innocent, e, "another's", 1)
				opened(h, e, "stream", 1)
				e.want(h.sendFrame(reset("stream", "done"))) // what it has left runs on
				revoke := func() {
					t.Helper()
					if _, err := c.st.RevokeKey(t.Context(), strings.TrimPrefix(c.harnessKey, store.KeyPrefix)); err != nil {
						t.Fatal(err)
					}
				}
				of := func(id string) string { return wire.PrincipalStream + first.signer.Pseudonym(c.environmentID, id) }
				says := func(stream string) { e.sendFrame(frame.Frame{StreamID: []byte(stream), Body: frame.Heartbeat}) }
				switch when {
				case "connected":
					revoke()
				case "away":
					e.socket.Close()
					c.eventually("nobody has the executor", func() bool { return !first.isThere(c.registration.ID) && !last.isThere(c.registration.ID) })
					revoke()
					h.wantEnd()
					e = last.executor()
				default:
					for _, s := range c.servers {
						if err := s.Close(); err != nil {
							t.Fatal(err)
						}
					}
					revoke()
					first = c.server(settings{})
					last = first
					e = first.executor()
				}
				if when != "connected" {
					says(of("key:0123456789abcdef")[:30]) // and what no registry has made
					says(of(other.Principal))
					says(of(c.harnessKey))
				}
				if got := within(t, e.told); got != of(c.harnessKey) {
					t.Errorf("the executor was told of %q, want %q", got, of(c.harnessKey))
				}
				innocent = last.dial(other)
				opened(innocent, e, "new", 1) // nothing is said of the other one
				if len(e.told) != 0 {
					t.Errorf("the executor was told of %q", <-e.told)
				}
				// No harness can say it.
				innocent.sendFrame(frame.Frame{StreamID: []byte(of(other.Principal)), Body: frame.Reset, Reason: []byte(wire.ResetRevoked)})
				innocent.sendFrame(resume(of(other.Principal)))
				exchange(innocent, e, "new", 1)
			})
		}
	}
}
