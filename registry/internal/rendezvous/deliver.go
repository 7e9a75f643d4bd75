package rendezvous

import (
	"time"

	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/registry/internal/notice"
)

const (
	// defaultPatience is how long a receiver that accepts nothing may delay the
	// websocket of the sender. After that time their stream is reset.
	defaultPatience = 10 * time.Second
	// hopWindow bounds the bytes of a stream that does not acknowledge between two
	// servers, until the receiver's lane has accepted them. The window is needed because
	// NATS does not slow down a sender. A stream that acknowledges may have laneLimit
	// bytes between the servers. Frames beyond that are lost, as in a full lane.
	hopWindow = 2 << 20
	// hopCredit is the number of bytes that a server passes on before it sends a taken.
	hopCredit = hopWindow / 8
)

// charge returns the bytes that a frame counts in a window: its length and a fixed amount,
// because a tiny frame costs far more than its length.
func charge(message *socket.Message) int { return len(message.Bytes) + 512 }

// side is a set of ends of a route, mostly the ends that a frame or a reset is sent to.
type side uint8

const (
	nobody     side = 0
	toExecutor side = 1
	toHarness  side = 2
	both       side = toExecutor | toHarness
)

// path says where the frames of a route go now: into a lane of a websocket here, to another
// server, or nowhere.
type path struct {
	to       side
	lane     *socket.Lane
	node     string
	revision uint64 // of the executor's presence
	plain    bool   // the stream does not acknowledge, so a lost frame ends the stream
	behind   bool   // the frame has to wait behind others, see executor.late
}

// send passes a frame on and takes over the hold on it. For a stream that does not
// acknowledge, send waits until there is room. It runs in the goroutine that reads the
// harness's websocket. So if the executor does not read, this harness is delayed, but only
// with its own streams. The frames of an executor go through pass. A stream that acknowledges
// has a window of its own: a frame that cannot be delivered is dropped, and its end sends it
// again.
func (rs *Routes) send(rt *route, p path, message *socket.Message) {
	switch {
	case p.lane != nil && !p.plain:
		rs.offer(p.lane, message)
	case p.lane != nil:
		if !tryLane(p.lane, message) && !rs.sendPatiently(p.lane, message) {
			rt.meeting.overflow(rt, p.lane)
		}
	case p.node == "":
		rs.drop(message)
	case !rt.meeting.reserve(rt, charge(message)):
		rs.drop(message)
	default:
		if err := rs.hop.send(p.node, p.to, rt.meeting.id, p.revision, message); err != nil && p.plain {
			rt.meeting.lose(rt)
		}
	}
}

// offer puts a frame of a stream that acknowledges into a lane. If the lane is full, the
// frame is lost and the stream goes on. The reason is that the lane may belong to a dead
// websocket whose end is about to connect again, or may be full of repeated frames.
func (rs *Routes) offer(lane *socket.Lane, message *socket.Message) {
	if !lane.TrySend(message) {
		rs.metrics.Dropped.Add(1)
	}
}

// tryLane reports whether the lane has accepted the message without waiting. If not, the
// caller still holds the message.
func tryLane(lane *socket.Lane, message *socket.Message) bool {
	message.Retain()
	if lane.TrySend(message) {
		message.Release()
		return true
	}
	return false
}

// sendPatiently reports whether the lane has accepted the message within defaultPatience. If
// not, it closes the lane.
func (rs *Routes) sendPatiently(lane *socket.Lane, message *socket.Message) bool {
	late := time.AfterFunc(defaultPatience, lane.Close)
	defer late.Stop()
	return lane.Send(message) == nil
}

// overflow ends a stream whose receiver has not kept up. It does nothing if the lane
// has failed because its websocket has ended or was replaced.
func (m *meeting) overflow(rt *route, lane *socket.Lane) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.overflowLocked(rt, lane)
}

// overflowLocked is overflow for a caller that holds the mutex.
func (m *meeting) overflowLocked(rt *route, lane *socket.Lane) {
	m.rs.metrics.Dropped.Add(1)
	switch {
	case rt.ended:
		return
	case lane == rt.up && m.executor.socket.Err() == nil:
	case lane == rt.down && rt.harness.socket.Err() == nil:
	default:
		return
	}
	m.tooSlowLocked(rt)
}

// lose ends a stream that does not acknowledge and has lost a frame between servers, because
// its ends would wait for that frame forever.
func (m *meeting) lose(rt *route) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endLocked(rt, resetRouteLost, both)
}

// passResetLocked passes a reset on to the other end, and ends the route.
func (m *meeting) passResetLocked(rt *route, to side, message *socket.Message) {
	m.endHandshakeLocked(rt, true)
	if m.executor != nil {
		m.executor.owners.Forget(rt.stream)
	}
	lane, control, node := m.wayLocked(rt, to)
	switch {
	case lane != nil:
		putReset(lane, control, message)
	case node != "":
		// If send fails, the connection to NATS is lost. Then lettersLost or the other
		// server ends the stream.
		_ = m.rs.hop.send(node, to, m.id, m.revision, message)
	default:
		m.rs.drop(message)
	}
	m.endLocked(rt, "", nobody)
}

// wayLocked returns the way to an end of a route now: the lanes of a websocket here, another
// server, or neither.
func (m *meeting) wayLocked(rt *route, to side) (lane, control *socket.Lane, node string) {
	if to == toHarness {
		if rt.harness != nil {
			control = rt.harness.control
		}
		return rt.down, control, rt.node
	}
	if m.executor != nil {
		control = m.executor.control
	}
	return rt.up, control, m.node
}

// pathLocked returns the path of a frame that an end has sent. The caller sends the frame
// along the path without the mutex. If the frame is a reset, pathLocked sends it itself,
// because the route ends with it, and ok is false.
func (m *meeting) pathLocked(rt *route, to side, f *frame.Frame, message *socket.Message) (p path, ok bool) {
	if f.Body == frame.Reset {
		m.passResetLocked(rt, to, message)
		return path{}, false
	}
	return m.dataPathLocked(rt, to), true
}

// dataPathLocked is pathLocked for a frame that is no reset, or for a reset that is sent like
// other frames.
func (m *meeting) dataPathLocked(rt *route, to side) path {
	lane, _, node := m.wayLocked(rt, to)
	return path{to: to, lane: lane, node: node, revision: m.revision, plain: !rt.acknowledges}
}

// reserve reports whether n more bytes may be sent to the other server. For a stream that
// does not acknowledge, reserve waits for room in the window, as send waits for a lane. Only
// one goroutine at a time may call it for a route.
func (m *meeting) reserve(rt *route, n int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	var late <-chan time.Time
	for rt.sent >= hopWindow && !rt.ended && !rt.acknowledges {
		if late == nil {
			timer := time.NewTimer(defaultPatience)
			defer timer.Stop()
			late = timer.C
		}
		if rt.room == nil {
			rt.room = make(chan struct{})
		}
		room := rt.room
		m.mu.Unlock()
		tooLate := false
		select {
		case <-room:
		case <-late:
			tooLate = true
		}
		m.mu.Lock()
		if tooLate {
			m.endLocked(rt, resetTooSlow, both)
		}
	}
	if rt.ended || rt.acknowledges && rt.sent >= laneLimit {
		return false
	}
	rt.sent += n
	return true
}

// creditLocked notes that the other server has passed on or lost n bytes, and wakes
// reserve.
func (m *meeting) creditLocked(rt *route, n int) {
	rt.sent = max(rt.sent-n, 0)
	if rt.room != nil && rt.sent < hopWindow {
		close(rt.room)
		rt.room = nil
	}
}

// arriveLocked passes on a frame from another server. It never waits, because one
// goroutine handles the frames of all streams. A frame that the lane does not accept at
// once waits in the route. The window bounds the bytes that wait there.
func (m *meeting) arriveLocked(rt *route, to side, from string, message *socket.Message) {
	lane, _, _ := m.wayLocked(rt, to)
	n := charge(message)
	switch {
	case rt.pumping:
	case rt.acknowledges:
		m.rs.offer(lane, message)
		m.tookLocked(rt, from, n)
		return
	default:
		if tryLane(lane, message) {
			m.tookLocked(rt, from, n)
			return
		}
		rt.pumping = true
		m.rs.serving.Go(func() { m.pump(rt, lane, from) })
	}
	if rt.arriving+n > hopWindow+frame.MaxMessage || rt.share.Spent() {
		// Only a stream that did not acknowledge when pump began comes here. If the
		// stream acknowledges by now, its sender repeats the frame.
		if rt.acknowledges {
			m.rs.drop(message)
			m.tookLocked(rt, from, n)
			return
		}
		message.Release()
		m.overflowLocked(rt, lane)
		return
	}
	rt.arrived = append(rt.arrived, message)
	rt.arriving += n
	rt.share.Take(n)
}

// pump puts the frames that have arrived into the lane and waits for room there, so that the
// goroutine that receives from other servers need not wait. It ends when no frame is left or
// the lane no longer belongs to the route.
func (m *meeting) pump(rt *route, lane *socket.Lane, from string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(rt.arrived) > 0 && !rt.ended && (lane == rt.up || lane == rt.down) {
		message := rt.arrived[0]
		n := charge(message)
		rt.arrived = rt.arrived[1:]
		last := isReset(message)
		m.mu.Unlock()
		taken := m.rs.sendPatiently(lane, message)
		m.mu.Lock()
		rt.arriving -= n
		rt.share.Give(n)
		switch {
		case !taken:
			m.overflowLocked(rt, lane)
		case last:
			m.endLocked(rt, "", nobody)
		}
		if !taken || last {
			break
		}
		m.tookLocked(rt, from, n)
	}
	for _, message := range rt.arrived {
		m.rs.drop(message)
	}
	rt.share.Give(rt.arriving)
	rt.arrived, rt.arriving, rt.pumping = nil, 0, false
}

// tookLocked notes that n bytes from another server have been passed on or lost. After each
// hopCredit bytes it tells that server.
func (m *meeting) tookLocked(rt *route, from string, n int) {
	rt.taken += n
	if rt.taken >= hopCredit {
		m.rs.hop.tell(from, notice.Notice{Kind: notice.Taken, Registration: m.id, Stream: rt.stream, Bytes: rt.taken})
		rt.taken = 0
	}
}
