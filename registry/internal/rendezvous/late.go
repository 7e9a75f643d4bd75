package rendezvous

import (
	"log/slog"

	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/socket"
)

// maxLate bounds the bytes of one stream that wait beyond its lane or window, while
// others have streams on its executor's websocket.
const maxLate = 16 << 20

// pass passes on a frame of the executor, in the goroutine that reads its websocket, and
// takes over the hold on the frame. A harness that does not take what it is sent must
// not delay the streams of others, which come through the same websocket: then its frames
// wait in the route. Only while nobody else has a stream there is the websocket held up,
// so that the executor sends no faster than that harness reads.
func (e *executor) pass(rt *route, p path, message *socket.Message) {
	switch {
	case p.behind:
		e.late(rt, message)
	case !p.plain:
		e.rs.send(rt, p, message)
	case p.lane != nil:
		if !tryLane(p.lane, message) {
			e.late(rt, message)
		}
	case p.node == "":
		e.rs.drop(message)
	case !e.meeting.reserveAtOnce(rt, charge(message)):
		e.late(rt, message)
	default:
		if e.rs.hop.send(p.node, p.to, e.meeting.id, p.revision, message) != nil {
			e.meeting.lose(rt)
		}
	}
}

// reserveAtOnce is reserve for a stream that does not acknowledge, but does not wait.
func (m *meeting) reserveAtOnce(rt *route, n int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if rt.sent >= hopWindow {
		return false
	}
	rt.sent += n
	return true
}

// late lets a frame wait in its route, behind those that wait there already. If nobody
// else has a stream on the executor's websocket, late returns when the frame has gone.
func (e *executor) late(rt *route, message *socket.Message) {
	m := e.meeting
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case rt.ended:
		e.rs.drop(message)
		return
	case rt.behind >= maxLate || rt.behind >= frame.MaxMessage && rt.share.Spent():
		e.rs.drop(message)
		if !rt.acknowledges { // if it does by now, the executor repeats the frame
			m.tooSlowLocked(rt)
		}
		return
	}
	n := charge(message)
	if rt.behind == 0 {
		m.rs.serving.Go(func() { m.catchUp(rt) })
	}
	rt.late = append(rt.late, message)
	rt.behind += n
	rt.share.Take(n)
	for rt.behind > 0 && !rt.ended && m.executor == e && m.isAloneLocked(rt) {
		if m.stirred == nil {
			m.stirred = make(chan struct{})
		}
		stirred := m.stirred
		m.mu.Unlock()
		select {
		case <-stirred:
		case <-e.socket.Done():
		}
		m.mu.Lock()
		if e.socket.Err() != nil {
			return
		}
	}
}

// isAloneLocked reports whether no harness other than that of rt has a stream. Of
// harnesses at another server each stream counts as one of another harness.
func (m *meeting) isAloneLocked(rt *route) bool {
	for _, other := range m.routes {
		if other != rt && other.thereLocked() && (other.harness == nil || other.harness != rt.harness) {
			return false
		}
	}
	return true
}

// stirLocked wakes late, after another stream was opened, one has ended, or a frame that
// waited has gone.
func (m *meeting) stirLocked() {
	if m.stirred != nil {
		close(m.stirred)
		m.stirred = nil
	}
}

// catchUp sends the frames that wait in the route, and ends when none is left. It waits
// for the harness as send does: the stream is reset if the harness takes nothing for as
// long as the server has patience.
func (m *meeting) catchUp(rt *route) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(rt.late) > 0 && !rt.ended {
		message := rt.late[0]
		rt.late[0] = nil
		rt.late = rt.late[1:]
		n := charge(message)
		last := isReset(message)
		p := m.dataPathLocked(rt, toHarness) // a stream that acknowledges by now may have another one
		m.mu.Unlock()
		m.rs.send(rt, p, message)
		m.mu.Lock()
		if last {
			m.endLocked(rt, "", nobody)
		}
		rt.behind -= n
		rt.share.Give(n)
		m.stirLocked()
	}
	for _, message := range rt.late {
		m.rs.drop(message)
	}
	rt.share.Give(rt.behind)
	rt.late, rt.behind = nil, 0
}

// isReset reports whether a frame, which was valid when it came, is a reset.
func isReset(message *socket.Message) bool {
	f, ok := frame.Inspect(message.Bytes)
	return ok && f.Body == frame.Reset
}

// tooSlowLocked ends a stream whose receiver has not kept up.
func (m *meeting) tooSlowLocked(rt *route) {
	m.rs.log.Tell(slog.LevelWarn, "a stream's receiver is too slow", m.environmentID, m.id, rt.principal)
	m.endLocked(rt, resetTooSlow, both)
}
