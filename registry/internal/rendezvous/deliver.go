package rendezvous

import (
	"time"

	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/registry/internal/notice"
)

const (
	// defaultPatience is how long a receiver that takes nothing may hold up the
	// websocket of the sender, before their stream is reset.
	defaultPatience = 10 * time.Second
	// hopWindow is how many bytes of a stream that does not acknowledge may be between
	// two servers, until the receiver's lane has taken them. There has to be a
	// window, since NATS holds up no sender. A stream that acknowledges may have
	// laneLimit bytes between them; frames beyond that are lost, as in a full lane.
	hopWindow = 2 << 20
	// hopCredit is how many bytes a server passes on before it sends a taken.
	hopCredit = hopWindow / 8
)

// charge returns the bytes that a frame counts in a window: its length and an amount
// for each frame, since a tiny one costs far more than its length.
func charge(message *socket.Message) int { return len(message.Bytes) + 512 }

// side names ends of a route, mostly by what is sent to them: a frame or a reset.
type side uint8

const (
	nobody     side = 0
	toExecutor side = 1
	toHarness  side = 2
	both       side = toExecutor | toHarness
)

// path says where the frames of a route go at the moment: into a lane of a websocket
// here, to another server, or nowhere.
type path struct {
	to       side
	lane     *socket.Lane
	node     string
	revision uint64 // of the executor's presence
	plain    bool   // the stream does not acknowledge: losing a frame would end it
	behind   bool   // the frame has to wait behind others, see lag
}

// send passes a frame on and takes over the hold on it. For a stream that does not
// acknowledge, send waits until there is room. So a harness that sends to an executor
// which does not read is held up, with its own streams alone: send runs in the goroutine
// that reads its websocket. What an executor sends goes through pass. A stream that
// acknowledges has a window of its own: what cannot be delivered is dropped, and its end
// sends it again.
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

// offer gives a lane a frame of a stream that acknowledges. If the lane is full the
// frame is lost and the stream goes on: the lane may belong to a dead websocket whose
// end is on its way here with a new one, or be full of what is repeated now.
func (rs *Routes) offer(lane *socket.Lane, message *socket.Message) {
	if !lane.TrySend(message) {
		rs.metrics.Dropped.Add(1)
	}
}

// tryLane reports whether the lane has taken the message, at once. If it has not, the
// caller still holds the message.
func tryLane(lane *socket.Lane, message *socket.Message) bool {
	message.Retain()
	if lane.TrySend(message) {
		message.Release()
		return true
	}
	return false
}

// sendPatiently reports whether the lane has taken the message within the server's
// patience. If it has not, sendPatiently closes the lane.
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

// lose ends a stream that does not acknowledge and has lost a frame between servers. Its
// ends would wait for that frame forever.
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
		// If send fails the connection to NATS is lost. lettersLost, or the other
		// server itself, ends the stream then.
		_ = m.rs.hop.send(node, to, m.id, m.revision, message)
	default:
		m.rs.drop(message)
	}
	m.endLocked(rt, "", nobody)
}

// wayLocked says how an end of a route is reached at the moment: by lanes of a
// websocket here, by another server, or not at all.
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

// pathLocked says where a frame that an end has sent goes. Its caller sends it there,
// without the mutex. A reset is sent here and now, since the route ends with it: then
// ok is false.
func (m *meeting) pathLocked(rt *route, to side, f *frame.Frame, message *socket.Message) (p path, ok bool) {
	if f.Body == frame.Reset {
		m.passResetLocked(rt, to, message)
		return path{}, false
	}
	return m.dataPathLocked(rt, to), true
}

// dataPathLocked is pathLocked for a frame that is no reset, or is to be sent like one
// that is none.
func (m *meeting) dataPathLocked(rt *route, to side) path {
	lane, _, node := m.wayLocked(rt, to)
	return path{to: to, lane: lane, node: node, revision: m.revision, plain: !rt.acknowledges}
}

// reserve reports whether n more bytes may go to the other server. For a stream that does
// not acknowledge, reserve waits for room in the window, as send waits for a lane. One
// goroutine at a time calls it for a route.
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

// arriveLocked passes on a frame from another server. It never waits, since one
// goroutine handles the frames of all streams. A frame that the lane does not take at
// once waits in the route, where the window bounds what may wait.
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
		// Only a stream that did not acknowledge when pump began comes here. If it
		// does by now, its sender repeats the frame.
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

// pump puts the frames that have arrived into the lane and waits for it, so that the
// goroutine that receives from other servers need not. It ends when no frame is left or
// the lane is no longer the route's.
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

// tookLocked notes that n bytes from another server have been passed on or lost, and
// tells that server now and then.
func (m *meeting) tookLocked(rt *route, from string, n int) {
	rt.taken += n
	if rt.taken >= hopCredit {
		m.rs.hop.tell(from, notice.Notice{Kind: notice.Taken, Registration: m.id, Stream: rt.stream, Bytes: rt.taken})
		rt.taken = 0
	}
}
