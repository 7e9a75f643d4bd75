package rendezvous

import (
	"bytes"
	"log/slog"
	"time"

	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/internal/relay/wire"
)

// defaultOpening is how long a harness's websocket may be without a stream.
const defaultOpening = 10 * time.Second

// harness is the websocket of a harness, which may open several streams on it. The
// reference opens one stream.
type harness struct {
	peer

	// The meeting's mutex protects these fields.
	routes  map[*route]struct{} // of the harness's streams
	opening *time.Timer         // closes the websocket if it has no stream when the timer fires
}

// serve runs a harness's websocket until it ends.
func (h *harness) serve() {
	m := h.meeting
	h.rs.aftermath.connected()
	m.mu.Lock()
	h.opening = time.AfterFunc(h.rs.opening, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(h.routes) == 0 {
			h.kick("it has no stream")
		}
	})
	if m.harnesses == nil {
		m.harnesses = make(map[*harness]struct{})
	}
	m.harnesses[h] = struct{}{}
	m.mu.Unlock()
	h.rs.metrics.Harnesses.Add(1)
	defer h.rs.metrics.Harnesses.Add(-1)
	// The executor's log has the pseudonym, and this line says whose it is.
	h.tell(slog.LevelInfo, "harness connected", "pseudonym", h.rs.signer.Pseudonym(m.environmentID, h.principal.ID))

	err := h.read(h.forward)

	m.mu.Lock()
	delete(m.harnesses, h)
	for rt := range h.routes {
		m.harnessGoneLocked(rt)
	}
	h.opening.Stop()
	m.mu.Unlock()
	h.ended("harness disconnected", err)
}

// giveUpLocked takes a route from the harness. If the websocket has no other stream, it is
// closed after Routes.opening, unless the harness opens a stream before.
func (h *harness) giveUpLocked(rt *route) {
	delete(h.routes, rt)
	rt.down.Close()
	rt.harness, rt.down = nil, nil
	if len(h.routes) == 0 {
		h.opening.Reset(h.rs.opening)
	}
}

// forward passes a frame of the harness on to the executor, if its stream belongs to
// this websocket or if the frame opens the stream.
func (h *harness) forward(message *socket.Message) {
	f, ok := frame.Inspect(message.Bytes)
	if !ok || bytes.HasPrefix(f.StreamID, []byte(wire.PrincipalStream)) {
		h.rs.drop(message)
		return
	}
	if rt, p, ok := h.path(&f, message); ok {
		h.rs.send(rt, p, message)
	}
}

// path returns the path of a frame of the harness. If ok is false, path has taken over the
// hold on message, and the caller must not send it: the frame was a reset and is sent already,
// or it was dropped.
func (h *harness) path(f *frame.Frame, message *socket.Message) (rt *route, p path, ok bool) {
	m := h.meeting
	m.mu.Lock()
	defer m.mu.Unlock()
	rt = m.routes[string(f.StreamID)]
	if rt == nil || rt.harness != h {
		if f.Body != frame.Resume && f.Body != frame.Handshake {
			h.rs.drop(message)
			return nil, path{}, false
		}
		var err error
		if rt, err = m.openLocked(h, f); err != nil {
			h.refuseLocked(f, err)
			h.rs.drop(message)
			return nil, path{}, false
		}
	}
	rt.observeLocked(f, toHarness)
	if f.Body == frame.Handshake {
		if err := h.handshakeLocked(rt); err != nil {
			m.endLocked(rt, resetHandshakes, both)
			if err == errFailing {
				h.kick(err.Error())
			}
			h.rs.drop(message)
			return nil, path{}, false
		}
	}
	p, ok = m.pathLocked(rt, toExecutor, f, message)
	return rt, p, ok
}

// handshakeLocked returns an error if a handshake of the harness must not reach the
// executor. A handshake counts as a request of the harness's principal, because it makes the
// executor ask the registry.
func (h *harness) handshakeLocked(rt *route) error {
	if _, ok := h.rs.limits.Request(h.principal); !ok {
		return errCrowded
	}
	if h.meeting.executor == nil {
		return nil // the executor's server counts the handshake
	}
	switch ok, failing := h.meeting.beginHandshakeLocked(rt); {
	case failing:
		return errFailing
	case !ok:
		return errCrowded
	}
	return nil
}

// refuseLocked answers a frame that may not open its stream. If there are too many streams,
// the answer is a reset; otherwise it is the end of the websocket.
func (h *harness) refuseLocked(f *frame.Frame, err error) {
	if err == errCrowded {
		h.rs.sendReset(nil, h.control, string(f.StreamID), resetRefused)
		return
	}
	h.kick(err.Error())
}
