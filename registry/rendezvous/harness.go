package rendezvous

import (
	"time"

	"github.com/execagent/execagent/relay/frame"
	"github.com/execagent/execagent/relay/socket"
)

// defaultOpening is how long a harness's websocket may be without a stream.
const defaultOpening = 10 * time.Second

// harness is a websocket of a harness.
type harness struct {
	peer

	// The meeting's mutex protects these.
	routes  map[*route]struct{} // of the streams that it has opened
	opening *time.Timer         // ends a websocket without streams
}

// serve runs a harness's websocket until it ends.
func (h *harness) serve() {
	m := h.meeting
	h.rs.metrics.Harnesses.Add(1)
	h.rs.aftermath.connected()
	defer h.rs.metrics.Harnesses.Add(-1)
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
	h.info("harness connected")

	err := h.read(h.forward)

	m.mu.Lock()
	delete(m.harnesses, h)
	for rt := range h.routes {
		m.detach(rt)
	}
	h.opening.Stop()
	m.mu.Unlock()
	h.ended("harness disconnected", err)
}

// forget takes a route from the harness. The meeting's mutex is held.
func (h *harness) forget(rt *route) {
	delete(h.routes, rt)
	rt.down.Close()
	rt.release()
	rt.harness, rt.down, rt.release = nil, nil, nil
	if len(h.routes) == 0 {
		h.opening.Reset(h.rs.opening)
	}
}

// forward passes a frame of the harness on to the executor, if it belongs to a
// stream of this websocket or opens one.
func (h *harness) forward(message *socket.Message) {
	f, ok := frame.Inspect(message.Bytes)
	if !ok {
		h.rs.drop(message)
		return
	}
	m := h.meeting
	m.mu.Lock()
	rt := m.routes[string(f.StreamID)]
	if rt == nil || rt.harness != h {
		if f.Body != frame.Resume && f.Body != frame.Handshake {
			m.mu.Unlock()
			h.rs.drop(message)
			return
		}
		var err error
		if rt, err = m.open(h, &f); err != nil {
			h.refuse(&f, err)
			m.mu.Unlock()
			h.rs.drop(message)
			return
		}
	}
	rt.observe(&f, toHarness)
	if f.Body == frame.Handshake {
		if err := h.handshake(rt); err != nil {
			m.end(rt, resetHandshakes, both)
			if err == errFailing {
				h.kick(err.Error())
			}
			m.mu.Unlock()
			h.rs.drop(message)
			return
		}
	}
	m.pass(rt, toExecutor, &f, message)
}

// handshake tells why one of the harness is not to reach the executor. It counts as
// a request of its principal, since it makes the executor ask the registry. The
// meeting's mutex is held.
func (h *harness) handshake(rt *route) error {
	if _, ok := h.rs.limits.Request(h.principal); !ok {
		return errCrowded
	}
	if h.meeting.executor == nil {
		return nil // its server decides
	}
	switch ok, failing := h.meeting.beginHandshake(rt); {
	case failing:
		return errFailing
	case !ok:
		return errCrowded
	}
	return nil
}

// refuse answers a stream that may not be opened. The meeting's mutex is held.
func (h *harness) refuse(f *frame.Frame, err error) {
	if err == errCrowded {
		h.rs.sendReset(nil, h.control, string(f.StreamID), resetRefused)
		return
	}
	h.kick(err.Error())
}
