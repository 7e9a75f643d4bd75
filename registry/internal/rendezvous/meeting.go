package rendezvous

import (
	"errors"
	"sync"
	"time"

	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/registry/internal/notice"
)

// Reasons why a harness does not get a stream. Only the log has their texts.
var (
	errIntruder = errors.New("the stream belongs to another harness")
	errFailing  = errors.New("too many handshakes of its principal have failed")
	errAbsent   = errors.New("no executor is connected")
	errCrowded  = errors.New("too many streams")
)

// meeting is what this server knows of one registration: where its executor is, and
// the routes of its streams. The executor is here (executor is set), at another server
// (node is), or nowhere. doc.go draws what follows for a route.
type meeting struct {
	rs            *Routes
	id            string
	environmentID string
	holders       int // of the meeting: see Routes.leave; Routes.mu protects it

	presenceMu sync.Mutex // held while the store and the other servers are told of an executor here
	published  uint64     // the revision that was told last, 0 when it was taken back; under presenceMu

	mu        sync.Mutex        // protects the fields below
	executor  *executor         // nil unless the executor is here
	node      string            // of the server that the executor is at, "" unless it is there
	revision  uint64            // of the newest presence that this server has heard of
	over      uint64            // of the newest presence that is known to have ended
	away      *time.Timer       // ends all streams unless the executor comes back
	routes    map[string]*route // by stream id
	claims    map[string]*claim // by principal id
	harnesses map[*harness]struct{}
	held      int           // bytes that all routes hold for harnesses
	stirred   chan struct{} // closed when what holdUp waits for may be there; nil while it does not wait
	locating  bool          // locateLater is asking the store where the executor is
}

// online is onlineLocked for those who do not hold the mutex.
func (m *meeting) online() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.onlineLocked()
}

// onlineLocked reports whether the executor is connected, as far as is known.
func (m *meeting) onlineLocked() bool { return m.executor != nil || m.node != "" }

// addLocked makes a route without a harness. It leads to the executor if that is here.
// Until its end the route holds the meeting.
func (m *meeting) addLocked(stream string) *route {
	rt := &route{meeting: m, stream: stream}
	if m.executor != nil {
		rt.up = rt.laneLocked(m.executor.socket)
	}
	if m.routes == nil {
		m.routes = make(map[string]*route)
	}
	m.routes[stream] = rt
	m.rs.mu.Lock()
	m.holders++
	m.rs.mu.Unlock()
	m.rs.metrics.Streams.Add(1)
	return rt
}

// openLocked gives a harness of this server the stream that f names, which it does not
// have yet. The stream is new, or another websocket had it before. The error is
// errCrowded, errIntruder or errAbsent.
func (m *meeting) openLocked(h *harness, f *frame.Frame) (*route, error) {
	rt := m.routes[string(f.StreamID)]
	switch {
	case rt == nil && !m.mayOpenLocked(h.principal.ID), len(h.routes) >= maxHarnessStreams:
		return nil, errCrowded
	case rt != nil && !rt.mayTakeLocked(h.principal.ID), !m.mayOwnLocked(string(f.StreamID), h.principal.ID):
		return nil, errIntruder
	case !m.onlineLocked() && !f.Acknowledges() && (rt == nil || !rt.acknowledges):
		return nil, errAbsent
	}
	var release func()
	if rt != nil && rt.principal == h.principal.ID && rt.release != nil {
		release, rt.release = rt.release, nil // it has a place, and keeps it
	} else {
		var ok bool
		if release, ok = m.rs.limits.Stream(h.principal); !ok {
			return nil, errCrowded
		}
	}
	if rt == nil {
		rt = m.addLocked(string(f.StreamID))
	}
	rt.observeLocked(f, toHarness)
	m.takeFromHarnessLocked(rt)
	m.assignLocked(rt, h.principal.ID)
	rt.harness = h
	rt.billLocked(h.principal.ID, release)
	rt.down = rt.laneLocked(h.socket)
	if h.routes == nil {
		h.routes = make(map[*route]struct{})
	}
	h.routes[rt] = struct{}{}
	h.opening.Stop()
	m.stirLocked()
	m.deliverHeldLocked(rt)
	if m.node != "" {
		m.rs.hop.announceLocked(m, rt)
	}
	return rt, nil
}

// takeFromHarnessLocked takes the route from the websocket that its harness had so far,
// here or at another server, since the harness has come with a new one. A websocket
// that loses its last stream is closed.
func (m *meeting) takeFromHarnessLocked(rt *route) {
	rt.waitsNoMoreLocked()
	if rt.node != "" {
		m.rs.hop.tell(rt.node, notice.Notice{Kind: notice.Moved, Registration: m.id, Stream: rt.stream})
		rt.node = ""
	}
	if h := rt.harness; h != nil {
		h.giveUpLocked(rt)
		if len(h.routes) == 0 {
			h.kick("its stream has a newer websocket")
		}
	}
}

// harnessGoneLocked notes that the websocket of the route's harness has ended: a
// stream that acknowledges waits for another one, at the executor's server; the
// executor is sent a reset of any other.
func (m *meeting) harnessGoneLocked(rt *route) {
	if rt.harness != nil {
		rt.harness.giveUpLocked(rt)
	}
	rt.node = ""
	m.endHandshakeLocked(rt, true)
	switch {
	case m.node != "":
		// Not this server but the executor's waits for the harness. That one knows
		// all that the executor has sent of the stream; this one may have known
		// the stream only for a moment.
		m.rs.hop.tell(m.node, notice.Notice{Kind: notice.Detach, Registration: m.id, Stream: rt.stream})
		m.endLocked(rt, "", nobody)
	case !rt.acknowledges:
		m.endLocked(rt, resetHarnessGone, toExecutor)
	default:
		m.awaitHarnessLocked(rt)
	}
}

// awaitHarnessLocked ends the route after the grace time, unless a harness has come
// for it by then.
func (m *meeting) awaitHarnessLocked(rt *route) {
	rt.waitsNoMoreLocked()
	m.reopenWindowLocked(rt)
	if rt.release == nil && rt.principal != "" {
		// The harness was at another server, which counts the stream no more.
		rt.release = m.rs.limits.KeepStream(rt.principal)
	}
	m.rs.metrics.Waiting.Add(1)
	rt.grace = time.AfterFunc(m.rs.grace, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if !rt.ended && !rt.thereLocked() {
			m.endLocked(rt, resetHarnessGone, toExecutor)
		}
	})
}

// waitsNoMoreLocked undoes awaitHarnessLocked.
func (rt *route) waitsNoMoreLocked() {
	if rt.grace != nil {
		rt.grace.Stop()
		rt.grace = nil
		rt.meeting.rs.metrics.Waiting.Add(-1)
	}
}

// endLocked forgets a route and sends the ends that tell names a reset of its stream
// with the reason. It does nothing if the route has ended before.
func (m *meeting) endLocked(rt *route, reason string, tell side) {
	if rt.ended {
		return
	}
	rt.ended = true
	if tell&toExecutor != 0 {
		m.resetLocked(rt, toExecutor, reason)
	}
	if tell&toHarness != 0 {
		m.resetLocked(rt, toHarness, reason)
	}
	if m.routes[rt.stream] == rt { // if not, revoke has put a barred route in its place
		delete(m.routes, rt.stream)
	}
	if rt.harness != nil {
		rt.harness.giveUpLocked(rt)
	}
	if rt.up != nil {
		rt.up.Close()
	}
	rt.waitsNoMoreLocked()
	m.reopenWindowLocked(rt)
	m.stirLocked()
	m.dropHeldLocked(rt)
	if rt.release != nil {
		rt.release()
	}
	m.unclaimLocked(rt)
	m.rs.leave(m)
	m.rs.metrics.Streams.Add(-1)
}
