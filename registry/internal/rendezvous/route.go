package rendezvous

import (
	"time"

	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/socket"
)

// Bounds of what peers can make a rendezvous remember.
const (
	// maxHarnessStreams bounds the streams of one harness's websocket. The reference
	// opens one stream on each.
	maxHarnessStreams = 16
	// maxMeetingStreams bounds the streams of one registration. Its executor serves
	// 128 at once (remote.md 8.2).
	maxMeetingStreams = 1024
	// maxHeldStream and maxHeldMeeting bound the bytes that are held for harnesses
	// whose whereabouts are unknown, for one stream and for one registration: an
	// executor repeats frames as soon as it has a new websocket.
	maxHeldStream  = 4 << 20
	maxHeldMeeting = 16 << 20
)

// laneLimit bounds the bytes that wait in one lane. It leaves room for the 4 MiB that a
// stream which acknowledges may have under way (remote.md 8.1), and for the other
// frames before and between them: handshakes, resumes and acknowledgements.
const laneLimit = 6 << 20

// Reasons in the resets that a rendezvous sends, for people who read a log: no end does
// one thing for one of them and another for the next.
const (
	resetHarnessGone  = "harness_disconnected"
	resetExecutorGone = "executor_disconnected"
	resetTooSlow      = "receiver_too_slow"
	resetRouteLost    = "route_lost"
	resetRefused      = "too_many_streams"
	resetHandshakes   = "too_many_handshakes"
)

// route is what this server knows of one stream. Its meeting's mutex protects all of
// it.
type route struct {
	meeting *meeting
	stream  string

	// principal is the one whose harness opened the stream; harnesses of no other
	// principal get the route. It is "" while only the executor has named the stream.
	principal    string
	acked        side // the ends that have acknowledged something (remote.md 8.1)
	acknowledges bool // both have, so that the stream can be resumed
	handshaking  bool // a handshake is under way, see claim
	answered     bool // the executor has answered a handshake
	revoked      bool // nobody gets the stream any more, see barLocked
	ended        bool

	harness *harness // of the stream, if it is here
	node    string   // of the server that has the harness, if another one has
	grace   *time.Timer
	release func()         // gives the principal's place for a stream back
	share   *socket.Budget // of what waits, see billLocked
	payer   string         // the principal whose share it is

	up, down *socket.Lane // to the executor and to the harness; nil if that end is not here

	held      []*socket.Message // for the harness, while nobody knows where it is
	heldBytes int

	late   []*socket.Message // from the executor here, while its harness does not take them
	behind int               // bytes in late, and of the frame that catchUp sends

	// A route between servers also has these.
	sent     int               // bytes on the way to the other server
	room     chan struct{}     // closed when sent shrinks; nil while reserve does not wait
	arrived  []*socket.Message // from the other server, while the lane here is full
	arriving int               // bytes in arrived
	pumping  bool              // pump runs, and empties arrived into the lane
	taken    int               // bytes passed on or lost that no taken has told of yet
}

// thereLocked reports whether the harness is connected, as far as is known.
func (rt *route) thereLocked() bool { return rt.harness != nil || rt.node != "" }

// billLocked lets the route, and the bytes that wait for its ends, count for a
// principal from now on. The harness's principal pays for both directions: its harness
// sends what waits, or does not read it. While only the executor has named the stream,
// the executor's principal pays. release gives back the principal's place for a stream;
// it is nil if the principal has that place at another server.
func (rt *route) billLocked(principalID string, release func()) {
	if rt.release != nil {
		rt.release()
	}
	waiting := rt.heldBytes + rt.arriving + rt.behind
	rt.share.Give(waiting)
	rt.release, rt.share, rt.payer = release, rt.meeting.rs.limits.Share(principalID), principalID
	rt.share.Take(waiting)
	if rt.up != nil {
		// Only an empty lane may get another share. The executor's lane is empty
		// until the first harness comes, and later ones are of the same principal.
		rt.up.Share(rt.share)
	}
}

// laneLocked makes a lane of a websocket for the route. The bytes that wait in the lane
// count for the principal that billLocked has named.
func (rt *route) laneLocked(s *socket.Socket) *socket.Lane {
	l := s.NewLane(laneLimit)
	l.Share(rt.share)
	return l
}

// observeLocked notes what a frame of the end from shows: that this end acknowledges,
// or that both do. Both do if an end resumes a stream after it has sent records, or if
// an executor resumes one at all: they resume only what they know to be acknowledged.
// (A harness also opens a stream with a resume.) One end alone is not enough. If the
// rendezvous kept its stream, that end would wait for a peer that never comes back,
// with records that nobody asks for.
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
// open: the harness may know long before the server that its websocket is dead.
func (rt *route) mayTakeLocked(principal string) bool {
	if rt.revoked || rt.principal != "" && rt.principal != principal {
		return false
	}
	return !rt.thereLocked() || rt.acknowledges
}

// reopenWindowLocked forgets the bytes that are on the way to the other server of the
// route, after that server or the size of the window has changed or the route has
// ended, and wakes reserve.
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

// sendReset makes a reset and puts it into the lanes of a websocket here.
func (rs *Routes) sendReset(lane, control *socket.Lane, stream, reason string) {
	rs.metrics.Resets.Add(1)
	putReset(lane, control, resetMessage(stream, reason))
}

// putReset puts a reset into the lane of its stream, behind the stream's frames. If
// there is no such lane or it is full, the reset goes into the control lane and may
// overtake them. putReset takes over the hold on the reset.
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

// holdLocked keeps a frame of an executor until a harness comes for the stream. Beyond
// the bounds the frame is dropped; the executor repeats it, since only streams that
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

// deliverHeldLocked passes the held frames on to the harness, which has come. All of
// them are in its lane before the mutex is free, so that no newer frame overtakes them.
func (m *meeting) deliverHeldLocked(rt *route) {
	rt.share.Give(rt.heldBytes) // the lane counts it from now on
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

// drop counts and releases a frame that has nowhere to go.
func (rs *Routes) drop(message *socket.Message) {
	rs.metrics.Dropped.Add(1)
	message.Release()
}
