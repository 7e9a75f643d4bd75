package rendezvous

import (
	"errors"
	"sync"
	"time"

	"github.com/execagent/execagent/registry/rendezvous/notice"
	"github.com/execagent/execagent/relay/frame"
)

// errIntruder is a harness that opens a stream which is another one's, errFailing
// one whose principal has had too many handshakes fail. errAbsent is that no
// executor is there to open a stream to, errCrowded that there are too many.
var (
	errIntruder = errors.New("the stream belongs to another harness")
	errFailing  = errors.New("too many handshakes of its principal have failed")
	errAbsent   = errors.New("no executor is connected")
	errCrowded  = errors.New("too many streams")
)

// meeting is where an executor and its harnesses find each other: what this
// server knows of one registration. The executor is here (executor), at another
// server (node), or nowhere.
//
// A route is at most at two servers, the one of its harness and the one of its
// executor. That of the harness asks for it anew wherever the executor turns up;
// when the harness has gone, that of the executor waits for it to come back.
type meeting struct {
	rs            *Routes
	id            string
	environmentID string
	holders       int // belongs to routes.mu

	presenceMu sync.Mutex // held while the store and the others are told of an executor here
	published  uint64     // revision of what they were told last, 0 when it was taken back

	mu        sync.Mutex // protects the fields below
	executor  *executor
	node      string
	revision  uint64 // of the newest presence that was heard of
	over      uint64 // of the newest one that was heard to have ended
	away      *time.Timer
	routes    map[string]*route // by stream id
	claims    map[string]*claim // by principal id
	harnesses map[*harness]struct{}
	held      int  // bytes in all routes
	locating  bool // somebody asks the store where the executor is
}

// online is online without the mutex.
func (m *meeting) online() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.onlineLocked()
}

// onlineLocked tells whether the executor is connected, as far as is known.
func (m *meeting) onlineLocked() bool { return m.executor != nil || m.node != "" }

// addLocked makes a route that leads nowhere yet. The mutex is held.
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

// openLocked gives a harness of this server the route of a stream that it names first.
// The mutex is held.
func (m *meeting) openLocked(h *harness, f *frame.Frame) (*route, error) {
	rt := m.routes[string(f.StreamID)]
	switch {
	case rt == nil && !m.mayOpenLocked(h.principal.ID), len(h.routes) >= maxHarnessStreams:
		return nil, errCrowded
	case rt != nil && !rt.mayTakeLocked(h.principal.ID):
		return nil, errIntruder
	case !m.onlineLocked() && !f.Acknowledges() && (rt == nil || !rt.acknowledges):
		return nil, errAbsent
	}
	release, ok := m.rs.limits.Stream(h.principal)
	if !ok {
		return nil, errCrowded
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
	m.deliverHeldLocked(rt)
	if m.node != "" {
		m.rs.hop.announceLocked(m, rt)
	}
	return rt, nil
}

// takeFromHarnessLocked takes the route from its harness, wherever that is. The mutex is held.
func (m *meeting) takeFromHarnessLocked(rt *route) {
	if rt.grace != nil {
		rt.grace.Stop()
		rt.grace = nil
	}
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

// harnessGoneLocked is that the route's harness is gone. The mutex is held.
func (m *meeting) harnessGoneLocked(rt *route) {
	if rt.harness != nil {
		rt.harness.giveUpLocked(rt)
	}
	rt.node = ""
	m.endHandshakeLocked(rt, true)
	switch {
	case m.node != "":
		// The server of the executor decides, and waits for it, so that this one
		// can go: it knows all that the executor has acknowledged, while this one
		// may have had the stream for a moment only.
		m.rs.hop.tell(m.node, notice.Notice{Kind: notice.Detach, Registration: m.id, Stream: rt.stream})
		m.endLocked(rt, "", nobody)
	case !rt.acknowledges:
		m.endLocked(rt, resetHarnessGone, toExecutor)
	default:
		m.awaitHarnessLocked(rt)
	}
}

// awaitHarnessLocked ends the route unless its harness comes back within the grace time. The
// mutex is held.
func (m *meeting) awaitHarnessLocked(rt *route) {
	if rt.grace != nil {
		rt.grace.Stop()
	}
	m.reopenWindowLocked(rt)
	rt.grace = time.AfterFunc(m.rs.grace, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if !rt.ended && !rt.thereLocked() {
			m.endLocked(rt, resetHarnessGone, toExecutor)
		}
	})
}

// endLocked forgets a route and sends resets for its stream. The mutex is held.
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
	if m.routes[rt.stream] == rt { // revoke has put another one in its place
		delete(m.routes, rt.stream)
	}
	if rt.harness != nil {
		rt.harness.giveUpLocked(rt)
	}
	if rt.up != nil {
		rt.up.Close()
	}
	if rt.grace != nil {
		rt.grace.Stop()
	}
	m.reopenWindowLocked(rt)
	m.dropHeldLocked(rt)
	if rt.release != nil {
		rt.release()
	}
	m.unclaimLocked(rt)
	m.rs.leave(m)
	m.rs.metrics.Streams.Add(-1)
}
