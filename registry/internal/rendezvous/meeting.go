package rendezvous

import (
	"errors"
	"sync"
	"time"

	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/registry/internal/notice"
)

// Reasons why a harness does not get a stream. Their texts are only in the log.
var (
	errIntruder = errors.New("the stream belongs to another harness")
	errFailing  = errors.New("too many handshakes of its principal have failed")
	errAbsent   = errors.New("no executor is connected")
	errCrowded  = errors.New("too many streams")
)

// meeting is the state of one registration at this server: where its executor is, and
// the routes of its streams. The executor is here (executor is set), at another server
// (node is set), or nowhere. The table in doc.go shows the consequences for a route.
type meeting struct {
	rs            *Routes
	id            string
	environmentID string
	holders       int // callers, routes and goroutines that hold the meeting: see Routes.leave; Routes.mu protects it

	presenceMu sync.Mutex // held while the store and the other servers are told of an executor here
	published  uint64     // the revision that was published last, 0 after it was withdrawn; under presenceMu

	mu        sync.Mutex        // protects the fields below
	executor  *executor         // nil unless the executor is here
	node      string            // the other server that the executor is at; "" if it is at none
	revision  uint64            // of the newest presence that this server knows of
	over      uint64            // of the newest presence that is known to have ended
	away      *time.Timer       // ends all streams unless the executor comes back
	routes    map[string]*route // by stream id
	claims    map[string]*claim // by principal id
	harnesses map[*harness]struct{}
	held      int           // bytes that all routes hold for harnesses
	stirred   chan struct{} // closed when executor.late must check again; nil while late does not wait
	locating  bool          // locateLater is asking the store where the executor is
}

// online is onlineLocked for callers that do not hold the mutex.
func (m *meeting) online() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.onlineLocked()
}

// onlineLocked reports whether the executor is connected, as far as is known.
func (m *meeting) onlineLocked() bool { return m.executor != nil || m.node != "" }

// addLocked makes a route without a harness. The route leads to the executor if the executor
// is here. Until its end the route holds the meeting.
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

// openLocked gives a harness of this server the stream that f names. The harness does not
// have this stream yet. The stream is new, or another websocket had it before. The error is
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
		release, rt.release = rt.release, nil // the route keeps the place that it has
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

// takeFromHarnessLocked takes the route from the harness's old websocket, here or at another
// server, because the harness has come with a new websocket. A websocket that loses its
// last stream is closed.
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

// harnessGoneLocked notes that the websocket of the route's harness has ended. A stream that
// acknowledges waits for another websocket, at the executor's server. For any other stream
// the executor is sent a reset.
func (m *meeting) harnessGoneLocked(rt *route) {
	if rt.harness != nil {
		rt.harness.giveUpLocked(rt)
	}
	rt.node = ""
	m.endHandshakeLocked(rt, true)
	switch {
	case m.node != "":
		// The executor's server waits for the harness, and not this server. The
		// executor's server knows all frames that the executor has sent of the stream.
		// This server may have known the stream only for a moment.
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
		// The harness was at another server, which no longer counts the stream.
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

// endLocked forgets a route, and sends a reset of its stream with the reason to the ends in
// tell. It does nothing if the route has ended before.
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
