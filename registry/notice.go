package registry

import (
	"context"
	"time"

	"github.com/execagent/execagent/relay/frame"
	"github.com/execagent/execagent/relay/socket"
)

// frame handles a frame from another server, and takes over the hold on it.
func (m *meeting) frame(to side, from string, message *socket.Message) {
	f, ok := inspect(message)
	m.mu.Lock()
	defer m.mu.Unlock()
	rt := m.routes[string(f.StreamID)]
	switch {
	case !ok:
		rt = nil
	case to == toExecutor && m.executor == nil:
		m.rs.hop.tell(from, notice{Kind: noticeAbsent, Registration: m.id})
		rt = nil
	case to == toExecutor && rt != nil && rt.node != from:
		rt = nil
	case to == toHarness && (rt == nil || rt.harness == nil):
		if f.Body != frame.Reset {
			m.rs.hop.tell(from, notice{Kind: noticeDetach, Registration: m.id, Stream: string(f.StreamID)})
		}
		rt = nil
	}
	if rt == nil {
		m.rs.drop(message)
		return
	}
	rt.observe(&f)
	if f.Body == frame.Reset {
		m.passReset(rt, to, message)
		return
	}
	m.arrive(rt, to, from, message)
}

// noticed handles a notice of another server.
func (rs *routes) noticed(from string, n notice) {
	if n.Registration == "" {
		return
	}
	m := rs.find(n.Registration)
	if m == nil {
		if n.Kind == noticeOpen {
			rs.hop.tell(from, notice{Kind: noticeAbsent, Registration: n.Registration})
		}
		return
	}
	defer rs.leave(m)
	switch n.Kind {
	case noticeOnline:
		m.appeared(from, n.Revision)
	case noticeOffline:
		m.disappeared(from, n.Revision)
	case noticeAbsent:
		m.disappeared(from, 0)
		rs.locateLater(m)
	default:
		m.mu.Lock()
		defer m.mu.Unlock()
		if n.Kind == noticeOpen {
			m.opened(from, n)
		} else if rt := m.routes[n.Stream]; rt != nil {
			m.told(rt, from, n)
		}
	}
}

// appeared is that the executor has a websocket at another server. The presence
// with the highest revision is the newest.
func (m *meeting) appeared(node string, revision uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if revision < m.revision || revision == m.revision && m.online() {
		return
	}
	if m.executor != nil && m.executor.revision == 0 {
		m.revision = revision // goOnline compares it with the one to come
		return
	}
	if m.executor != nil {
		m.executor.kick("a newer websocket has taken its place")
		m.executor = nil
	}
	m.node, m.revision = node, revision
	m.renew()
}

// disappeared is that the executor's websocket at another server has ended, if
// that is still the newest; revision 0 does not ask.
func (m *meeting) disappeared(node string, revision uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.node != node || revision != 0 && revision != m.revision {
		return
	}
	m.node = ""
	m.bereave()
}

// opened is that a harness of another server has a stream, or had when detached.
// The mutex is held.
func (m *meeting) opened(from string, n notice) {
	rt := m.routes[n.Stream]
	refuse := notice{Kind: noticeRefused, Registration: m.id, Stream: n.Stream}
	switch {
	case m.executor == nil:
		m.rs.hop.tell(from, notice{Kind: noticeAbsent, Registration: m.id})
		return
	case n.Stream == "" || len(n.Stream) > maxStreamID:
		return
	case rt != nil && rt.node == from:
		return
	case rt != nil && n.Detached && rt.principal != "":
		return // others know more of it
	case rt != nil && !rt.mayTake(n.Principal):
		refuse.Intruder = true
		m.rs.hop.tell(from, refuse)
		return
	case rt == nil && len(m.routes) >= maxMeetingStreams:
		m.rs.hop.tell(from, refuse)
		return
	case rt == nil:
		rt = m.add(n.Stream)
	}
	m.unseat(rt)
	rt.principal = n.Principal
	rt.acknowledges = rt.acknowledges || n.Acknowledges
	if n.Detached {
		m.dropHeld(rt)
		m.wait(rt)
		return
	}
	rt.node = from
	m.deliverHeld(rt)
}

// told handles the other notices on one stream. The mutex is held.
func (m *meeting) told(rt *route, from string, n notice) {
	h := rt.harness
	switch n.Kind {
	case noticeDetach:
		if rt.node == from {
			m.detach(rt)
		}
	case noticeTaken:
		m.credit(rt, max(n.Bytes, 0))
	case noticeMoved:
		if h != nil && m.executor == nil {
			m.end(rt, "", nobody)
			if len(h.routes) == 0 {
				h.kick("its stream has a newer websocket")
			}
		}
	case noticeRefused:
		switch {
		case h == nil || m.executor != nil:
		case n.Intruder:
			m.end(rt, "", nobody)
			h.kick(errIntruder.Error())
		default:
			m.end(rt, resetRefused, toHarness)
		}
	}
}

// nodeGone is that another server has ended.
func (rs *routes) nodeGone(node string) {
	rs.each(func(m *meeting) {
		m.disappeared(node, 0)
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, rt := range m.routes {
			if rt.node == node {
				m.detach(rt)
			}
		}
	})
}

// lost is that messages between servers may have been lost. Streams that
// acknowledge repeat them, the others cannot go on.
func (rs *routes) lost() {
	rs.each(func(m *meeting) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, rt := range m.routes {
			if !rt.acknowledges && (rt.node != "" || m.node != "") {
				m.end(rt, resetRouteLost, both)
			}
		}
	})
}

// announceAll tells the other servers of all executors here.
func (rs *routes) announceAll() {
	rs.each(func(m *meeting) {
		m.mu.Lock()
		here, revision := m.executor != nil, m.revision
		m.mu.Unlock()
		if here && revision != 0 {
			rs.hop.broadcast(notice{Kind: noticeOnline, Registration: m.id, Revision: revision})
		}
	})
}

// recall looks for the executors that are not here, and tells their servers of
// the streams that are: another server has come back, and may have forgotten.
func (rs *routes) recall() {
	rs.each(func(m *meeting) {
		m.mu.Lock()
		elsewhere := m.executor == nil
		if m.node != "" {
			for _, rt := range m.routes {
				rs.hop.announce(m, rt)
			}
		}
		m.mu.Unlock()
		if elsewhere {
			rs.locateLater(m)
		}
	})
}

// locateLater looks for an executor without holding up the caller, who is in the
// meeting.
func (rs *routes) locateLater(m *meeting) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.locating {
		return
	}
	m.locating = true
	rs.mu.Lock()
	m.holders++
	rs.mu.Unlock()
	rs.serving.Go(func() {
		defer rs.leave(m)
		err := rs.locate(rs.background, m)
		m.mu.Lock()
		m.locating = false
		m.mu.Unlock()
		if err != nil && rs.background.Err() == nil {
			rs.s.log.Warn("looking for an executor", "environment", m.environmentID, "registration", m.id, "error", err)
		}
	})
}

// locate asks the store where the executor is.
func (rs *routes) locate(ctx context.Context, m *meeting) error {
	st := rs.s.store
	p, revision, found, err := get[presence](ctx, st.presence, m.environmentID)
	if err != nil || !found || p.RegistrationID != m.id {
		return err
	}
	if p.Node == rs.s.node {
		if m.seats(nil) {
			// It could not be taken back when its websocket ended.
			return st.setOffline(ctx, m.environmentID, revision)
		}
		return nil
	}
	_, _, alive, err := get[time.Time](ctx, st.nodes, p.Node)
	if err == nil && alive {
		m.appeared(p.Node, revision)
	}
	return err
}
