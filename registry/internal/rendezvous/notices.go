package rendezvous

import (
	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/registry/internal/notice"
)

// frame handles a frame from another server, and takes over the hold on its message.
// revision is the revision of the executor's presence that a frame for an executor is meant
// for. For a frame to a harness it is not used. A frame that has no route here is
// dropped, and its sender is told. A reset needs no answer, because its sender has ended
// the stream.
func (m *meeting) frame(to side, from string, revision uint64, message *socket.Message) {
	f, ok := frame.Inspect(message.Bytes)
	m.mu.Lock()
	defer m.mu.Unlock()
	rt := m.routes[string(f.StreamID)]
	switch {
	case !ok:
		rt = nil
	case to == toExecutor && m.isOverLocked(revision):
		m.rs.hop.tell(from, notice.Notice{Kind: notice.Absent, Registration: m.id, Revision: revision})
		rt = nil
	case to == toExecutor && (rt == nil || rt.node != from):
		if f.Body != frame.Reset {
			m.rs.hop.tell(from, notice.Notice{Kind: notice.Unknown, Registration: m.id, Stream: string(f.StreamID)})
		}
		rt = nil
	case to == toHarness && (rt == nil || rt.harness == nil):
		if f.Body != frame.Reset {
			m.rs.hop.tell(from, notice.Notice{Kind: notice.Detach, Registration: m.id, Stream: string(f.StreamID)})
		}
		rt = nil
	}
	if rt == nil {
		m.rs.drop(message)
		return
	}
	rt.observeLocked(&f, both&^to)
	switch {
	case f.Body == frame.Reset && !rt.pumping: // otherwise it has to wait behind the frames in arrived
		m.passResetLocked(rt, to, message)
		return
	case f.Body == frame.Handshake && to == toExecutor:
		if ok, failing := m.beginHandshakeLocked(rt); !ok {
			if failing {
				m.rs.hop.tell(from, notice.Notice{Kind: notice.Refused, Registration: m.id, Stream: rt.stream, Failing: true})
			}
			m.endLocked(rt, resetHandshakes, both)
			m.rs.drop(message)
			return
		}
	}
	m.arriveLocked(rt, to, from, message)
}

// isOverLocked reports whether the executor's websocket of this revision is not here, or
// no longer here. Frames for an older websocket are dropped, because the newer websocket must
// not get them before, between or after its own frames.
func (m *meeting) isOverLocked(revision uint64) bool {
	switch e := m.executor; {
	case e == nil:
		return true
	case e.revision == 0: // the store has not noted e yet; all presences that it knew before have ended
		return revision <= m.revision
	default:
		return revision < e.revision
	}
}

// noticed handles a notice of another server. doc.go has the effect of each notice.
func (rs *Routes) noticed(from string, n notice.Notice) {
	if n.Registration == "" {
		return
	}
	if n.Kind == notice.Online && n.Environment != "" {
		rs.supersede(n.Environment, n.Registration)
	}
	m := rs.find(n.Registration)
	if m == nil {
		if n.Kind == notice.Open {
			rs.hop.tell(from, notice.Notice{Kind: notice.Absent, Registration: n.Registration, Revision: n.Revision})
		}
		return
	}
	defer rs.leave(m)
	switch n.Kind {
	case notice.Online:
		m.appeared(from, n.Revision)
	case notice.Offline:
		m.disappeared(from, n.Revision)
	case notice.Absent:
		// The notice may be about an older websocket than the sender has now.
		m.disappeared(from, n.Revision)
		rs.locateLater(m)
	default:
		m.mu.Lock()
		defer m.mu.Unlock()
		if n.Kind == notice.Open {
			m.openedLocked(from, n)
		} else if rt := m.routes[n.Stream]; rt != nil {
			m.toldLocked(rt, from, n)
		}
	}
}

// appeared notes that the executor has a websocket at another server, unless a
// newer presence is known, which has a higher revision.
func (m *meeting) appeared(node string, revision uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if revision < m.revision || revision == m.revision && m.onlineLocked() || revision <= m.over {
		return
	}
	if m.executor != nil && m.executor.revision == 0 {
		// It is unknown which websocket is newer until the store has noted the websocket
		// here. Then goOnline compares the two revisions.
		m.revision = revision
		return
	}
	if m.executor != nil {
		m.executor.kick("a newer websocket has taken its place")
		m.executor = nil
	}
	m.node, m.revision = node, revision
	m.executorChangedLocked()
}

// disappeared handles the end of the executor's websocket at node. It ignores older
// revisions. A revision of 0 means that the node is gone, with any websocket that was there.
// If the node lives after all, it sends an online again.
func (m *meeting) disappeared(node string, revision uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over = max(m.over, revision)
	if m.node != node || revision != 0 && revision != m.revision {
		return
	}
	m.node = ""
	m.executorGoneLocked()
}

// openedLocked handles an open, in its three forms (doc.go): a harness at another
// server has a stream, had the stream and is away, or has lost the stream forever.
func (m *meeting) openedLocked(from string, n notice.Notice) {
	rt := m.routes[n.Stream]
	refuse := notice.Notice{Kind: notice.Refused, Registration: m.id, Stream: n.Stream}
	switch {
	case m.executor == nil:
		m.rs.hop.tell(from, notice.Notice{Kind: notice.Absent, Registration: m.id, Revision: n.Revision})
		return
	case n.Stream == "":
		return
	case n.Revoked:
		if rt == nil && len(m.routes) < maxMeetingStreams {
			rt = m.addLocked(n.Stream)
		}
		if rt != nil && rt.principal == "" && !rt.revoked {
			// The executor may have resumed the stream already, and only this reset
			// tells it the end.
			m.resetLocked(rt, toExecutor, wire.ResetRevoked)
			m.barLocked(rt)
		}
		return
	case rt != nil && rt.node == from:
		return // a repeated open, in case this server had forgotten the stream
	case rt != nil && n.Detached && rt.principal != "":
		return // a harness has had the stream here
	case rt != nil && !rt.mayTakeLocked(n.Principal), !m.mayOwnLocked(n.Stream, n.Principal):
		refuse.Intruder = true
		m.rs.hop.tell(from, refuse)
		return
	case rt == nil && !m.mayOpenLocked(n.Principal):
		m.rs.hop.tell(from, refuse)
		return
	case rt == nil:
		rt = m.addLocked(n.Stream)
	}
	m.takeFromHarnessLocked(rt)
	m.assignLocked(rt, n.Principal)
	rt.billLocked(n.Principal, nil)
	if n.Acknowledges {
		rt.acked, rt.acknowledges = both, true
	}
	if n.Detached {
		m.dropHeldLocked(rt)
		m.awaitHarnessLocked(rt)
		return
	}
	rt.node = from
	m.stirLocked()
	m.deliverHeldLocked(rt)
}

// toldLocked handles a notice other than open about a stream that is known here.
func (m *meeting) toldLocked(rt *route, from string, n notice.Notice) {
	h := rt.harness
	switch n.Kind {
	case notice.Detach:
		if rt.node == from {
			m.harnessGoneLocked(rt)
		}
	case notice.Taken:
		m.creditLocked(rt, max(n.Bytes, 0))
	case notice.Unknown:
		switch {
		case h == nil || m.node != from:
		case rt.acknowledges:
			m.reopenWindowLocked(rt)
			m.rs.hop.announceLocked(m, rt)
		default: // the stream has lost a frame
			m.endLocked(rt, resetRouteLost, toHarness)
		}
	case notice.Moved:
		if h != nil && m.executor == nil {
			m.endLocked(rt, "", nobody)
			if len(h.routes) == 0 {
				h.kick("its stream has a newer websocket")
			}
		}
	case notice.Refused:
		switch {
		case h == nil || m.executor != nil:
		case n.Intruder:
			m.endLocked(rt, "", nobody)
			h.kick(errIntruder.Error())
		case n.Failing:
			m.endLocked(rt, resetHandshakes, toHarness)
			h.kick(errFailing.Error())
		default:
			m.endLocked(rt, resetRefused, toHarness)
		}
	}
}

// nodeGone handles the end of another server: its executors are nowhere, and its harnesses
// are away.
func (rs *Routes) nodeGone(node string) {
	rs.each(func(m *meeting) {
		m.disappeared(node, 0)
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, rt := range m.routes {
			if rt.node == node {
				m.harnessGoneLocked(rt)
			}
		}
	})
}

// lettersLost resets the streams between servers that do not acknowledge, because a frame of
// them may have been lost. The ends of streams that acknowledge repeat lost frames.
func (rs *Routes) lettersLost() {
	rs.each(func(m *meeting) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, rt := range m.routes {
			if !rt.acknowledges && (rt.node != "" || m.node != "") {
				m.endLocked(rt, resetRouteLost, both)
			}
		}
	})
}

// announceAll sends another server an online for each executor here that the store has
// noted. For the others goOnline will tell all servers.
func (rs *Routes) announceAll(node string) {
	rs.each(func(m *meeting) {
		m.mu.Lock()
		here, revision := m.executor != nil, m.revision
		m.mu.Unlock()
		if here && revision != 0 {
			rs.hop.tell(node, notice.Notice{Kind: notice.Online, Registration: m.id, Revision: revision})
		}
	})
}

// recall restores the state that this server may have missed. It sends its opens again, and
// asks the store for executors that are nowhere. With all, any letter may have been lost: then
// it also asks for executors at other servers, and makes sure that the store knows the
// executors here.
func (rs *Routes) recall(all bool) {
	rs.each(func(m *meeting) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.node != "" {
			for _, rt := range m.routes {
				rs.hop.announceLocked(m, rt)
			}
		} else if all && m.executor == nil {
			m.revision, m.over = 0, 0 // revisions may have begun with 1 again, see reassert
		}
	})
	// The store is asked for one meeting after the other, because there may be thousands.
	rs.serving.Go(func() {
		rs.each(func(m *meeting) {
			m.mu.Lock()
			here := m.executor
			look := !m.onlineLocked() || all && here == nil
			m.mu.Unlock()
			switch {
			case look:
				if rs.locateOrLog(m) {
					rs.locateLater(m)
				}
			case all && here != nil:
				m.reassert(rs.background, here)
			}
		})
	})
}
