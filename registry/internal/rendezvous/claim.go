package rendezvous

import (
	"time"

	"github.com/execagent/execagent/registry/internal/notice"
)

// Bounds of what one principal may have of one executor, so that something is left for
// others.
const (
	// maxPrincipalStreams leaves a quarter of the 128 that an executor serves at
	// once (remote.md 8.2).
	maxPrincipalStreams = 96
	// maxHandshaking counts handshakes without an answer yet: half of what the
	// executor takes at once.
	maxHandshaking = 16
	// maxFailed counts handshakes that have failed; one is forgotten every
	// failedFor. Each costs the executor the arithmetic of a key agreement and a
	// request to the registry.
	maxFailed = 16
	failedFor = time.Second
)

// claim is what a principal has of a registration, counted at the executor's server.
// It belongs to the meeting's mutex.
type claim struct {
	streams     int       // its routes
	handshaking int       // those among them whose handshake has no answer yet
	failed      int       // handshakes that came to nothing
	failedAt    time.Time // as of when
}

// forgiveLocked counts failed handshakes down, one for each failedFor that has passed.
func (c *claim) forgiveLocked(now time.Time) {
	n := int(now.Sub(c.failedAt) / failedFor)
	if n >= c.failed {
		c.failed, c.failedAt = 0, now
		return
	}
	c.failed -= n
	c.failedAt = c.failedAt.Add(time.Duration(n) * failedFor)
}

// claimLocked finds or makes the claim of a principal. When it makes one it drops those
// of others that count nothing any more.
func (m *meeting) claimLocked(principal string) *claim {
	if c := m.claims[principal]; c != nil {
		return c
	}
	now := time.Now()
	for id, c := range m.claims { // all, since there are few as a rule, and seldom a new one
		c.forgiveLocked(now)
		if c.streams == 0 && c.failed == 0 {
			delete(m.claims, id)
		}
	}
	c := &claim{failedAt: now}
	if m.claims == nil {
		m.claims = make(map[string]*claim)
	}
	m.claims[principal] = c
	return c
}

// mayOpenLocked reports whether a principal may have one more route.
func (m *meeting) mayOpenLocked(principal string) bool {
	return len(m.routes) < maxMeetingStreams && m.claimLocked(principal).streams < maxPrincipalStreams
}

// assignLocked makes a principal the owner of the route, for as long as the route
// lives.
func (m *meeting) assignLocked(rt *route, principal string) {
	if rt.principal == principal {
		return
	}
	rt.principal = principal
	m.claimLocked(principal).streams++
	if m.executor != nil {
		m.executor.knowsLocked(principal)
	}
}

// mayOwnLocked reports whether a principal may have the stream, by what the executor here has
// said of it: a server that was started anew remembers no stream, and another harness may
// come for one before its own does.
func (m *meeting) mayOwnLocked(stream, principal string) bool {
	if m.executor == nil || !m.executor.owners.Known(stream) {
		return true
	}
	return m.executor.owners.Is(stream, m.rs.signer.Pseudonym(m.environmentID, principal))
}

// evictLocked takes from harnesses the streams that belong to others, as the executor
// says, which has come just now: no server that is left has known these streams before.
func (m *meeting) evictLocked() {
	for _, rt := range m.routes {
		if rt.principal == "" || m.mayOwnLocked(rt.stream, rt.principal) {
			continue
		}
		h, node := rt.harness, rt.node
		m.endLocked(rt, "", nobody)
		if h != nil {
			h.kick(errIntruder.Error())
		} else if node != "" {
			m.rs.hop.tell(node, notice.Notice{Kind: notice.Refused, Registration: m.id, Stream: rt.stream, Intruder: true})
		}
	}
}

// unclaimLocked takes a route that ends out of its principal's claim.
func (m *meeting) unclaimLocked(rt *route) {
	if rt.principal != "" {
		m.endHandshakeLocked(rt, false)
		m.claimLocked(rt.principal).streams--
	}
}

// beginHandshakeLocked counts a handshake on its way to the executor, which is here. ok
// says that the handshake may go on to the executor. If not, failing tells the reason:
// too many handshakes of this principal have failed; or else too many are under way.
func (m *meeting) beginHandshakeLocked(rt *route) (ok, failing bool) {
	c := m.claimLocked(rt.principal)
	c.forgiveLocked(time.Now())
	if rt.handshaking || rt.answered { // a second one fails: the executor takes one a stream
		c.failed++
	}
	switch {
	case c.failed >= maxFailed:
		return false, true
	case rt.handshaking:
		return true, false
	case c.handshaking >= maxHandshaking:
		return false, false
	}
	rt.handshaking = true
	c.handshaking++
	return true, false
}

// endHandshakeLocked counts the end of the route's handshake, if one is under way.
// failed is false if the executor has answered, or if the principal is not to blame.
func (m *meeting) endHandshakeLocked(rt *route, failed bool) {
	if !rt.handshaking {
		return
	}
	rt.handshaking = false
	c := m.claimLocked(rt.principal)
	c.handshaking--
	if failed {
		c.forgiveLocked(time.Now())
		c.failed++
	}
}
