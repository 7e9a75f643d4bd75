package rendezvous

import (
	"log/slog"

	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/socket"
)

// maxLate bounds the bytes of one stream that wait in its route beyond its lane or window,
// while other harnesses have streams on its executor's websocket.
const maxLate = 16 << 20

// pass passes on a frame of the executor, in the goroutine that reads its websocket, and
// takes over the hold on the frame. A harness that does not read must not delay the streams
// of other harnesses, which come through the same websocket. So its frames wait in the
// route. If no other harness has a stream there, the websocket waits as well, so that the
// executor sends no faster than this harness reads.
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

// reserveAtOnce is reserve, without waiting, for a stream that does not acknowledge.
func (m *meeting) reserveAtOnce(rt *route, n int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if rt.sent >= hopWindow {
		return false
	}
	rt.sent += n
	return true
}

// late lets a frame wait in its route, behind the frames that wait there already. If no other
// harness has a stream on the executor's websocket, late returns only when the frame is sent.
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
		if !rt.acknowledges { // if the stream acknowledges by now, the executor repeats the frame
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

// isAloneLocked reports whether no harness other than the harness of rt has a stream. A stream
// whose harness is at another server counts as a stream of another harness.
func (m *meeting) isAloneLocked(rt *route) bool {
	for _, other := range m.routes {
		if other != rt && other.thereLocked() && (other.harness == nil || other.harness != rt.harness) {
			return false
		}
	}
	return true
}

// stirLocked wakes late. It is called after a stream was opened or has ended, or after a
// waiting frame was sent.
func (m *meeting) stirLocked() {
	if m.stirred != nil {
		close(m.stirred)
		m.stirred = nil
	}
}

// catchUp sends the frames that wait in the route, and ends when none is left. It waits
// for the harness as send does: if the harness accepts nothing for defaultPatience, the stream
// is reset.
func (m *meeting) catchUp(rt *route) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(rt.late) > 0 && !rt.ended {
		message := rt.late[0]
		rt.late[0] = nil
		rt.late = rt.late[1:]
		n := charge(message)
		last := isReset(message)
		p := m.dataPathLocked(rt, toHarness) // again, because the path changes if the stream acknowledges by now
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

// isReset reports whether a frame that was checked before is a reset.
func isReset(message *socket.Message) bool {
	f, ok := frame.Inspect(message.Bytes)
	return ok && f.Body == frame.Reset
}

// tooSlowLocked ends a stream whose receiver has not kept up.
func (m *meeting) tooSlowLocked(rt *route) {
	m.rs.log.Tell(slog.LevelWarn, "a stream's receiver is too slow", m.environmentID, m.id, rt.principal)
	m.endLocked(rt, resetTooSlow, both)
}
