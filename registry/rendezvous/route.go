package rendezvous

import (
	"time"

	"github.com/execagent/execagent/relay/frame"
	"github.com/execagent/execagent/relay/socket"
)

// Bounds of what peers can make a rendezvous remember.
const (
	// maxHarnessStreams is for one websocket. The reference opens one stream on each.
	maxHarnessStreams = 16
	// maxMeetingStreams is for one registration. Its executor serves 128 at once
	// (remote.md 8.2).
	maxMeetingStreams = 1024
	// Bytes of what an executor repeats on a new websocket while its harness is still
	// unknown, for one stream and for all of a registration.
	maxHeldStream  = 4 << 20
	maxHeldMeeting = 16 << 20
)

// laneLimit is in bytes: a stream that acknowledges has at most 4 MiB under way
// (remote.md 8.1), frames in front of it and answers between.
const laneLimit = 6 << 20

// Reasons in the resets that a rendezvous sends; nobody acts on them.
const (
	resetHarnessGone  = "harness_disconnected"
	resetExecutorGone = "executor_disconnected"
	resetTooSlow      = "receiver_too_slow"
	resetRouteLost    = "route_lost"
	resetRefused      = "too_many_streams"
	resetHandshakes   = "too_many_handshakes"
)

// route is what this server knows of one stream. All of it belongs to its meeting's
// mutex.
type route struct {
	meeting *meeting
	stream  string

	// principal is whose harness opened the stream, and nobody else gets the route. It
	// is "" while only the executor has spoken of the stream.
	principal    string
	acked        side // the ends that have acknowledged something (remote.md 8.1)
	acknowledges bool // both have, so that the stream can be resumed
	handshaking  bool // a handshake is under way, see claim
	answered     bool // the executor has answered a handshake
	revoked      bool // nobody gets the stream any more, see barLocked
	ended        bool

	harness *harness // whose stream it is, when it is here
	node    string   // of the server that has the harness, when it is not
	grace   *time.Timer
	release func()         // gives the principal's place for a stream back
	share   *socket.Budget // of what waits, see billLocked

	up, down *socket.Lane // to the executor and to the harness; nil if that is not here

	held      []*socket.Message // for the harness, while nobody knows where it is
	heldBytes int

	sent     int           // bytes on the way to the other server
	room     chan struct{} // closed when there are fewer; nil while nobody waits
	arrived  []*socket.Message
	arriving int  // bytes in arrived
	pumping  bool // somebody waits for a lane to take what has arrived
	taken    int  // bytes that were passed on, and the other server does not know it yet
}

// thereLocked tells whether the harness is connected, as far as is known.
func (rt *route) thereLocked() bool { return rt.harness != nil || rt.node != "" }

// billLocked lets the route, and what waits for its ends, count for a principal. That
// is the harness's, since the harness sends or does not read; as long as only the
// executor has spoken of the stream, it is the executor's. release is nil if the
// principal has its place for the stream at another server.
func (rt *route) billLocked(principalID string, release func()) {
	if rt.release != nil {
		rt.release()
	}
	waiting := rt.heldBytes + rt.arriving
	rt.share.Give(waiting)
	rt.release, rt.share = release, rt.meeting.rs.limits.Share(principalID)
	rt.share.Take(waiting)
	if rt.up != nil {
		rt.up.Share(rt.share) // the executor's lane was empty until there was a harness
	}
}

// laneLocked makes a lane of a websocket for the route, whose waiting bytes count as
// the route does.
func (rt *route) laneLocked(s *socket.Socket) *socket.Lane {
	l := s.NewLane(laneLimit)
	l.Share(rt.share)
	return l
}

// observeLocked looks whether a frame shows that both ends acknowledge. An end that
// resumes a stream with records sent has learnt before that the other one
// acknowledges. One end alone is not enough: a rendezvous that kept its stream would
// make it wait for a peer that never comes back, and keep records that nobody asks
// for.
func (rt *route) observeLocked(f *frame.Frame, from side) {
	if rt.acknowledges {
		return
	}
	if f.Acknowledges() {
		rt.acked |= from
	}
	if rt.acked == both || f.Body == frame.Resume && (f.NextSeq > 0 || from == toExecutor) {
		rt.acked, rt.acknowledges = both, true
		rt.meeting.reopenWindowLocked(rt) // the window of a stream that acknowledges is wider
	}
}

// mayTakeLocked tells whether a harness of the principal may have the route. A stream
// that acknowledges can be taken from a websocket that is still open, since the server
// may learn long after the harness that the websocket is dead.
func (rt *route) mayTakeLocked(principal string) bool {
	if rt.revoked || rt.principal != "" && rt.principal != principal {
		return false
	}
	return !rt.thereLocked() || rt.acknowledges
}

// reopenWindowLocked forgets what is under way to the other server of the route, after
// that server has changed, and wakes whoever waits in reserve.
func (m *meeting) reopenWindowLocked(rt *route) {
	rt.sent, rt.taken = 0, 0
	if rt.room != nil {
		close(rt.room)
		rt.room = nil
	}
}

// resetLocked sends one end of a route a reset of its stream, here or at another
// server.
func (m *meeting) resetLocked(rt *route, to side, reason string) {
	switch lane, control, node := m.wayLocked(rt, to); {
	case control != nil:
		m.rs.sendReset(lane, control, rt.stream, reason)
	case node != "":
		m.rs.hop.reset(node, to, m, rt.stream, reason)
	}
}

func (rs *Routes) sendReset(lane, control *socket.Lane, stream, reason string) {
	rs.metrics.Resets.Add(1)
	putReset(lane, control, resetMessage(stream, reason))
}

// putReset puts a reset behind the frames of its stream or, if their lane is full, on
// the control lane, in front of them. It takes over the hold on the reset.
func putReset(lane, control *socket.Lane, reset *socket.Message) {
	reset.Retain()
	if lane != nil && lane.TrySend(reset) {
		reset.Release()
		return
	}
	control.TrySend(reset)
}

func resetMessage(stream, reason string) *socket.Message {
	f := frame.Frame{StreamID: []byte(stream), Body: frame.Reset, Reason: []byte(reason)}
	message := socket.NewMessage(len(stream) + len(reason) + frame.MaxDataHeader)
	message.Bytes = f.Append(message.Bytes)
	return message
}

// holdLocked keeps what an executor says of a stream until the harness is known.
// Beyond the bounds a frame is dropped; an executor that acknowledges repeats it
// (remote.md 8.1). It takes over the hold on message.
func (m *meeting) holdLocked(rt *route, message *socket.Message) {
	n := message.Cost()
	if rt.heldBytes+n > maxHeldStream || m.held+n > maxHeldMeeting || rt.share.Spent() {
		m.rs.drop(message)
		return
	}
	rt.held = append(rt.held, message)
	rt.heldBytes += n
	m.held += n
	rt.share.Take(n)
}

// deliverHeldLocked passes on what was held, since the harness is known now. The mutex
// stays held until all of it is in the lane, so that no newer frame overtakes it.
func (m *meeting) deliverHeldLocked(rt *route) {
	rt.share.Give(rt.heldBytes) // the lane counts it from now on
	for _, message := range rt.held {
		if rt.down != nil {
			m.rs.offer(rt.down, message)
		} else {
			// If that fails the executor repeats the frame.
			_ = m.rs.hop.send(rt.node, toHarness, m.id, m.revision, message)
		}
	}
	m.held -= rt.heldBytes
	rt.held, rt.heldBytes = nil, 0
}

func (m *meeting) dropHeldLocked(rt *route) {
	rt.share.Give(rt.heldBytes)
	for _, message := range rt.held {
		m.rs.drop(message)
	}
	m.held -= rt.heldBytes
	rt.held, rt.heldBytes = nil, 0
}

// drop counts and releases a frame that has nowhere to go.
func (rs *Routes) drop(message *socket.Message) {
	rs.metrics.Dropped.Add(1)
	message.Release()
}
