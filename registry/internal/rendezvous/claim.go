package rendezvous

import (
	"time"

	"github.com/execagent/execagent/registry/internal/notice"
)

// Bounds of the share of one principal in one executor. They leave a share for other
// principals.
const (
	// maxPrincipalStreams is half of the 128 streams that an executor serves at once
	// (remote.md 8.2). An executor of ours gives a principal no more.
	maxPrincipalStreams = 64
	// maxHandshaking bounds the handshakes without an answer yet. It is half of the
	// handshakes that the executor accepts at once.
	maxHandshaking = 16
	// maxFailed bounds the handshakes that have failed; one is forgotten every
	// failedFor. Each handshake costs the executor the arithmetic of a key agreement and
	// a request to the registry.
	maxFailed = 16
	failedFor = time.Second
)

// claim counts the share of a principal in a registration, at the executor's server. The
// meeting's mutex protects it.
type claim struct {
	streams     int       // routes of the principal
	handshaking int       // routes whose handshake has no answer yet
	failed      int       // failed handshakes that are not forgotten yet
	failedAt    time.Time // the time up to which forgiveLocked has forgotten failed handshakes
}

// forgiveLocked forgets one failed handshake for each failedFor that has passed.
func (c *claim) forgiveLocked(now time.Time) {
	n := int(now.Sub(c.failedAt) / failedFor)
	if n >= c.failed {
		c.failed, c.failedAt = 0, now
		return
	}
	c.failed -= n
	c.failedAt = c.failedAt.Add(time.Duration(n) * failedFor)
}

// claimLocked finds or makes the claim of a principal. When it makes a claim, it drops the
// claims of other principals that count nothing any more.
func (m *meeting) claimLocked(principal string) *claim {
	if c := m.claims[principal]; c != nil {
		return c
	}
	now := time.Now()
	for id, c := range m.claims { // all claims, because usually there are few, and new ones are rare
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

// assignLocked makes a principal the owner of the route until the route ends.
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

// mayOwnLocked reports whether a principal may have the stream, by the owners that the
// executor here has named. The owners are needed because a restarted server remembers no
// stream, and a harness of another principal may ask for a stream before the right harness
// comes.
func (m *meeting) mayOwnLocked(stream, principal string) bool {
	if m.executor == nil || !m.executor.owners.Known(stream) {
		return true
	}
	return m.executor.owners.Is(stream, m.rs.signer.Pseudonym(m.environmentID, principal))
}

// evictLocked takes streams from harnesses that do not own them, by the owners that the
// executor has named. The executor has just connected, and no remaining server has known
// these streams before.
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

// unclaimLocked removes a route that ends from its principal's claim.
func (m *meeting) unclaimLocked(rt *route) {
	if rt.principal != "" {
		m.endHandshakeLocked(rt, false)
		m.claimLocked(rt.principal).streams--
	}
}

// beginHandshakeLocked counts a handshake on its way to the executor, which is here. ok
// reports whether the handshake may go on to the executor. If not, failing reports whether
// the reason is that too many handshakes of this principal have failed. The other reason is
// that too many handshakes have no answer yet.
func (m *meeting) beginHandshakeLocked(rt *route) (ok, failing bool) {
	c := m.claimLocked(rt.principal)
	c.forgiveLocked(time.Now())
	if rt.handshaking || rt.answered { // a second one fails: the executor accepts one for each stream
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

// endHandshakeLocked counts the end of the route's handshake, if it has no answer yet.
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
