package rendezvous

import (
	"time"

	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/socket"
)

// Bounds of the state that peers can cause in a rendezvous.
const (
	// maxHarnessStreams bounds the streams of one harness's websocket. The reference
	// opens one stream on each websocket.
	maxHarnessStreams = 16
	// maxMeetingStreams bounds the streams of one registration. Its executor serves
	// 128 streams at once (remote.md 8.2).
	maxMeetingStreams = 1024
	// maxHeldStream and maxHeldMeeting bound the bytes that are held for harnesses
	// whose server is unknown, for one stream and for one registration. Frames are held
	// because an executor repeats frames as soon as it has a new websocket.
	maxHeldStream  = 4 << 20
	maxHeldMeeting = 16 << 20
)

// laneLimit bounds the bytes that wait in one lane. It leaves room for the 4 MiB that a
// stream which acknowledges may have in flight (remote.md 8.1), and for the other
// frames before and between them: handshakes, resumes and acknowledgements.
const laneLimit = 6 << 20

// Reasons in the resets that a rendezvous sends. They are for people who read a log: an end
// does the same for all of them.
const (
	resetHarnessGone  = "harness_disconnected"
	resetExecutorGone = "executor_disconnected"
	resetTooSlow      = "receiver_too_slow"
	resetRouteLost    = "route_lost"
	resetRefused      = "too_many_streams"
	resetHandshakes   = "too_many_handshakes"
)

// route is the state of one stream at this server. The meeting's mutex protects all
// fields.
type route struct {
	meeting *meeting
	stream  string

	// principal is the id of the principal whose harness opened the stream. Only harnesses
	// of this principal get the route. It is "" while only the executor has named the stream.
	principal    string
	acked        side // the ends that have acknowledged something (remote.md 8.1)
	acknowledges bool // both ends acknowledge, so that the stream can be resumed
	handshaking  bool // a handshake has no answer yet, see claim
	answered     bool // the executor has answered a handshake
	revoked      bool // nobody gets the stream any more, see barLocked
	ended        bool

	harness *harness // of the stream, if it is here
	node    string   // the other server that has the harness, if any
	grace   *time.Timer
	release func()         // frees the principal's place for a stream
	share   *socket.Budget // for the bytes that wait, see billLocked
	payer   string         // the id of the principal whose budget share is

	up, down *socket.Lane // to the executor and to the harness; nil if that end is not here

	held      []*socket.Message // for the harness, while its server is unknown
	heldBytes int

	late   []*socket.Message // from the executor here, while its harness does not accept them
	behind int               // bytes in late and in the frame that catchUp sends

	// Fields for a route between servers.
	sent     int               // bytes in flight to the other server
	room     chan struct{}     // closed when sent shrinks; nil while reserve does not wait
	arrived  []*socket.Message // from the other server, while the lane here is full
	arriving int               // bytes in arrived and in the frame that pump sends
	pumping  bool              // pump runs, and moves arrived into the lane
	taken    int               // bytes passed on or lost since the last taken notice
}

// thereLocked reports whether the harness is connected, as far as is known.
func (rt *route) thereLocked() bool { return rt.harness != nil || rt.node != "" }

// billLocked counts the route, and the bytes that wait for its ends, for a principal from now
// on. The harness's principal pays for both directions, because its harness sends the bytes
// that wait, or does not read them. While only the executor has named the stream, the
// executor's principal pays. release frees the principal's place for a stream. It is nil if
// the principal has the place at another server.
func (rt *route) billLocked(principalID string, release func()) {
	if rt.release != nil {
		rt.release()
	}
	waiting := rt.heldBytes + rt.arriving + rt.behind
	rt.share.Give(waiting)
	rt.release, rt.share, rt.payer = release, rt.meeting.rs.limits.Share(principalID), principalID
	rt.share.Take(waiting)
	if rt.up != nil {
		// Only an empty lane may get another budget. The executor's lane is empty
		// until the first harness comes, and later harnesses are of the same principal.
		rt.up.Share(rt.share)
	}
}

// laneLocked makes a lane of a websocket for the route. The bytes that wait in the lane
// count for the principal of the last billLocked.
func (rt *route) laneLocked(s *socket.Socket) *socket.Lane {
	l := s.NewLane(laneLimit)
	l.Share(rt.share)
	return l
}

// observeLocked notes whether a frame from one end shows that this end acknowledges, or that
// both ends do. If an end resumes a stream after it has sent records, both ends acknowledge. If
// an executor resumes a stream at all, both ends acknowledge too. The reason is that ends only
// resume streams of which they know this. (But a harness also opens a stream with a resume.)
// One end alone is not enough: if the rendezvous kept such a stream, that end would wait, and
// keep records, for a peer that never comes back.
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

// mayTakeLocked reports whether another websocket of a harness of the principal may have
// the route. A stream that acknowledges can be taken from a websocket that is still
// open, because the harness may know long before the server that its websocket is dead.
func (rt *route) mayTakeLocked(principal string) bool {
	if rt.revoked || rt.principal != "" && rt.principal != principal {
		return false
	}
	return !rt.thereLocked() || rt.acknowledges
}

// reopenWindowLocked forgets the bytes in flight to the other server of the route, and wakes
// reserve. It is called after that server or the size of the window has changed, or after the
// route has ended.
func (m *meeting) reopenWindowLocked(rt *route) {
	rt.sent, rt.taken = 0, 0
	if rt.room != nil {
		close(rt.room)
		rt.room = nil
	}
}

// resetLocked sends a reset of the stream to one end of a route, here or at another
// server.
func (m *meeting) resetLocked(rt *route, to side, reason string) {
	switch lane, control, node := m.wayLocked(rt, to); {
	case control != nil:
		m.rs.sendReset(lane, control, rt.stream, reason)
	case node != "":
		m.rs.hop.reset(node, to, m, rt.stream, reason)
	}
}

// sendReset makes a reset and puts it into the lanes of a websocket here.
func (rs *Routes) sendReset(lane, control *socket.Lane, stream, reason string) {
	rs.metrics.Resets.Add(1)
	putReset(lane, control, resetMessage(stream, reason))
}

// putReset puts a reset into the lane of its stream, behind the stream's frames. If
// there is no such lane or the lane is full, the reset goes into the control lane and may
// overtake these frames. putReset takes over the hold on the reset.
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

// holdLocked keeps a frame of an executor until a harness comes for the stream. Beyond the
// bounds the frame is dropped. The executor repeats it, because only streams that
// acknowledge are resumed (remote.md 8.1). holdLocked takes over the hold on message.
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

// deliverHeldLocked passes the held frames on to the harness, which has come. It puts all
// of them into the harness's lane under the mutex, so that no newer frame overtakes them.
func (m *meeting) deliverHeldLocked(rt *route) {
	rt.share.Give(rt.heldBytes) // the lane counts these bytes from now on
	for _, message := range rt.held {
		if rt.down != nil {
			m.rs.offer(rt.down, message)
		} else {
			// If send fails, the executor repeats the frame.
			_ = m.rs.hop.send(rt.node, toHarness, m.id, m.revision, message)
		}
	}
	m.held -= rt.heldBytes
	rt.held, rt.heldBytes = nil, 0
}

// dropHeldLocked drops the frames that were held for the harness.
func (m *meeting) dropHeldLocked(rt *route) {
	rt.share.Give(rt.heldBytes)
	for _, message := range rt.held {
		m.rs.drop(message)
	}
	m.held -= rt.heldBytes
	rt.held, rt.heldBytes = nil, 0
}

// drop counts and releases a frame that cannot be delivered.
func (rs *Routes) drop(message *socket.Message) {
	rs.metrics.Dropped.Add(1)
	message.Release()
}
