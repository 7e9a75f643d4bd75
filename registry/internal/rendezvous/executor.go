package rendezvous

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net"
	"time"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/internal/relay/wire"
)

// errReplaced ends a websocket whose executor has opened a newer websocket.
var errReplaced = errors.New("a newer websocket has taken its place")

// onlinePatience is how long an executor's websocket waits for a store that does
// not answer.
const onlinePatience = 15 * time.Second

// executor is the websocket of a registration's executor.
type executor struct {
	peer
	// seen is the registration as it was read before the websocket opened;
	// meeting.presenceMu protects it.
	seen store.Seen
	// owners are the owners of the streams that the executor had when it connected.
	owners wire.StreamOwners
	// known are the ids of principals that have resources at the executor. asked are the ids
	// that check must still look up. checking says that check runs. meeting.mu protects
	// these fields.
	known    map[string]struct{}
	asked    []string
	checking bool
	// revision is the revision of the executor's presence, 0 until the store has noted this
	// websocket; meeting.mu protects it.
	revision uint64
}

// serve runs an executor's websocket until it ends.
func (e *executor) serve() {
	m := e.meeting
	e.rs.metrics.Executors.Add(1)
	e.rs.aftermath.connected()
	defer e.rs.metrics.Executors.Add(-1)
	m.seat(e)
	online := make(chan error, 1)
	e.rs.serving.Go(func() {
		err := e.goOnline()
		if err == nil {
			e.info("executor connected")
		} else {
			_ = e.socket.Close() // never fails
		}
		online <- err
		close(online)
	})
	var refusal error
	if !e.rs.store.Alone() {
		// Other servers must know of the executor before they get its frames.
		// A server that is alone need not wait for the store, because its harnesses
		// find the executor in the meeting.
		refusal = <-online
	}
	err := e.read(e.forward)
	m.vacate(e)
	if refusal = cmp.Or(refusal, <-online); refusal != nil && errors.Is(err, net.ErrClosed) {
		err = refusal
	}
	e.ended("executor disconnected", err)
	e.goOffline()
	if errors.Is(err, errReplaced) {
		e.rs.locateLater(m)
	}
}

// goOnline tells the store and the other servers that the executor is here. A store
// that does not answer is asked again for up to 15 s. Closing the websocket instead would
// cost more, because an executor waits longer each time before it connects again
// (remote.md 3.5).
func (e *executor) goOnline() error {
	ctx, cancel := context.WithTimeout(e.rs.background, onlinePatience)
	defer cancel()
	for {
		err := e.meeting.goOnline(e.rs.background, e)
		if !errors.Is(err, store.ErrUnavailable) || !store.Pause(ctx) {
			return err
		}
	}
}

// goOffline withdraws the presence that goOnline has published. It tries until the store
// answers, because no other key can be registered for the environment while the store has
// the presence.
func (e *executor) goOffline() {
	for again := false; !e.meeting.goOffline(e.rs.background, again) && store.Pause(e.rs.background); again = true {
	}
}

// seat makes e the executor of the meeting. It closes an older websocket, because an executor
// opens a new websocket only after it has given up the old one.
func (m *meeting) seat(e *executor) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.executor != nil {
		m.executor.kick("a newer websocket has taken its place")
	}
	m.executor, m.node = e, ""
	m.evictLocked()
	for _, rt := range m.routes {
		e.knowsLocked(rt.principal)
	}
	m.executorChangedLocked()
}

// vacate notes that the executor's websocket has ended. Streams that acknowledge wait for the
// next websocket, the others are reset. vacate does nothing if a newer websocket has the
// executor's place.
func (m *meeting) vacate(e *executor) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.executor == e {
		m.executor = nil
		m.executorGoneLocked()
	}
}

// executorChangedLocked notes that the executor has another websocket than before,
// here or at another server. The executor goes on with the streams that acknowledge;
// the others ended with its old websocket.
func (m *meeting) executorChangedLocked() {
	if m.away != nil {
		m.away.Stop()
		m.away = nil
	}
	for _, rt := range m.routes {
		if rt.up != nil {
			rt.up.Close()
			rt.up = nil
		}
		h := rt.harness
		if !rt.acknowledges {
			m.endLocked(rt, resetExecutorGone, rt.harnessHereLocked())
			if h != nil && len(h.routes) == 0 {
				h.kick("its executor has gone")
			}
			continue
		}
		m.reopenWindowLocked(rt)
		if m.executor != nil {
			rt.up = rt.laneLocked(m.executor.socket)
			continue
		}
		if rt.node == "" {
			m.rs.hop.announceLocked(m, rt)
		}
		if h == nil {
			// The stream has no end here any more. The executor's server learns of the
			// stream from the harness's server, or has just learned of it from this
			// server.
			m.endLocked(rt, "", nobody)
		}
	}
}

// executorGoneLocked notes that the executor is nowhere. Streams that acknowledge wait for
// the executor for the grace time; the others are reset.
func (m *meeting) executorGoneLocked() {
	for _, rt := range m.routes {
		if rt.up != nil {
			rt.up.Close()
			rt.up = nil
		}
		m.reopenWindowLocked(rt)
		m.dropHeldLocked(rt)
		if !rt.acknowledges {
			m.endLocked(rt, resetExecutorGone, rt.harnessHereLocked())
		}
	}
	for h := range m.harnesses {
		if len(h.routes) == 0 {
			h.kick("its executor has gone")
		}
	}
	if m.away != nil {
		m.away.Stop()
	}
	m.away = time.AfterFunc(m.rs.grace, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if !m.onlineLocked() {
			m.abandonLocked("its executor has not come back")
		}
	})
}

// harnessHereLocked returns the side that this server must reset when the executor has gone.
// That is the harness if its websocket is here. Another server learns of the executor's end
// itself.
func (rt *route) harnessHereLocked() side {
	if rt.harness != nil {
		return toHarness
	}
	return nobody
}

// abandonLocked ends all streams, and the websockets of the harnesses here.
func (m *meeting) abandonLocked(why string) {
	for _, rt := range m.routes {
		m.endLocked(rt, resetExecutorGone, both)
	}
	for h := range m.harnesses {
		h.kick(why)
	}
}

// forward passes a frame of the executor on to the stream's harness.
func (e *executor) forward(message *socket.Message) {
	f, ok := frame.Inspect(message.Bytes)
	if !ok {
		e.rs.drop(message)
		return
	}
	if pseudonym, ok := bytes.CutPrefix(f.StreamID, []byte(wire.PrincipalStream)); ok {
		if f.Body == frame.Heartbeat {
			e.hasOf(string(pseudonym))
		}
		message.Release()
		return
	}
	if rt, p, ok := e.path(&f, message); ok {
		e.pass(rt, p, message)
	}
}

// path returns the path of a frame of the executor. If ok is false, path has taken over the
// hold on message, and the caller must not send it: the frame is held for its harness, was a
// reset and is sent already, or was dropped.
func (e *executor) path(f *frame.Frame, message *socket.Message) (rt *route, p path, ok bool) {
	m := e.meeting
	m.mu.Lock()
	defer m.mu.Unlock()
	rt = m.routes[string(f.StreamID)]
	if rt == nil && m.executor == e && f.Body == frame.Resume && len(m.routes) < maxMeetingStreams {
		// The executor has moved here from another server, or the harness's server has
		// died. If the harness does not come within Grace, the stream ends. Until then
		// the stream counts for the executor's principal.
		if release, ok := e.rs.limits.Stream(e.principal); ok {
			rt = m.addLocked(string(f.StreamID))
			rt.billLocked(e.principal.ID, release)
			m.awaitHarnessLocked(rt)
		}
	}
	if rt == nil || m.executor != e {
		e.rs.drop(message)
		return nil, path{}, false
	}
	if rt.revoked {
		if f.Body == frame.Resume {
			m.resetLocked(rt, toExecutor, wire.ResetRevoked)
		}
		e.rs.drop(message)
		return nil, path{}, false
	}
	rt.observeLocked(f, toExecutor)
	if f.Body == frame.Handshake {
		m.endHandshakeLocked(rt, false)
		rt.answered = true
	}
	if rt.principal == "" && !rt.thereLocked() && f.Body != frame.Reset {
		m.holdLocked(rt, message)
		return nil, path{}, false
	}
	if rt.behind > 0 {
		return rt, path{behind: true}, true
	}
	p, ok = m.pathLocked(rt, toHarness, f, message)
	return rt, p, ok
}
