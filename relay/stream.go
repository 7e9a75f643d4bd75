package relay

import (
	"errors"
	"io"
	"iter"
	"net"
	"sync/atomic"

	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/noise"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/rpc"
)

var (
	errEmptyMessage = errors.New("writing a message: it is empty")
	errBigMessage   = errors.New("writing a message: it is larger than 64 MiB")
	errUnkept       = errors.New("the peer misses a frame that is no longer kept")
	errLaneLost     = errors.New("the websocket was lost and the peer does not acknowledge")
)

// streamConfig is what a stream is made of.
type streamConfig struct {
	id      []byte         // not changed as long as the stream lives
	session *noise.Session // the stream's own from now on, wiped at its end
	// principal is what the registry calls the harness's, "" if it does not say or this
	// end is the harness.
	principal string
	// harness says two things about this end. It acknowledges the first record
	// unasked, so that the other end learns at once that it can (remote.md 8.1).
	// And it stops reading its websocket while there is no room, since the
	// websocket carries no other stream.
	harness bool
	// acknowledges is set when the peer said in its handshake that it acknowledges.
	// A peer that did not say so may still show it with a first acknowledgement.
	acknowledges bool
	// budget bounds the memory of messages, from the arrival of a message until its
	// reader gives it back; nil bounds nothing.
	budget *rpc.Budget
	// The reserves are shared by the streams of a link: one for records that wait,
	// one for unacknowledged output. Nil bounds nothing.
	waitingReserve, keptReserve *reserve
	// send sends on the lane of the current websocket, see [socket.Lane.Send]; nil
	// when there is no websocket yet. It must return when the lane ends.
	send func(*socket.Message) error
	// ended is called once when the stream ends from this side: with nil after
	// Close, else with the peer's violation or the loss that cannot be made good;
	// not for an end by end, revoke or suspend. It may run in any goroutine, which
	// holds no mutex.
	ended func(s *stream, err error)
}

// stream is one Noise stream through the relay, after its handshake: a
// [rpc.Conn] at either end (remote.md 7, 8.1, 8.2, 8.4). Writers and readers do
// nearly all work in their own goroutines. Two goroutines of the stream run now and
// then: the pump (pump.go), while it sends acknowledgements and repeated frames,
// which ends with its lane; and goOn (inbound.go), while what has come waits for
// memory, which Close waits for.
//
//	Write → cut into records → seal → frame ┬ send (the lane)
//	                                        └ kept until acknowledged → sent again
//	receive → in order? → open → assembled messages → Read
//	             └ early: waits         └ no room: waits (flow control)
//
// The directions have a lock each, and neither is held while the other is
// taken, nor while a frame is sent: receive never waits for the peer.
type stream struct {
	id        []byte
	principal string
	keys      *noise.Session
	ended     func(s *stream, err error)
	over      atomic.Bool // the end has begun
	in        inbound
	out       outbound
}

// newStream makes the stream of a handshake that is complete. Nothing is sent.
func newStream(cfg streamConfig) *stream {
	s := &stream{id: cfg.id, principal: cfg.principal, keys: cfg.session, ended: cfg.ended}
	intake := rpc.NewIntake(cfg.budget, messagePatience, s.stalled)
	s.in.init(cfg.session, cfg.harness, intake, s.out.received)
	s.out.init(cfg, s.fail)
	s.in.share.reserve, s.out.kept.share.reserve = cfg.waitingReserve, cfg.keptReserve
	return s
}

// Read returns the next message, see [rpc.Conn]. After the peer's end it first
// gives what had arrived.
func (s *stream) Read() ([]byte, error) {
	message, got, err := s.in.read()
	if got.news() {
		s.out.received(got)
	}
	if err != nil && !s.over.Load() { // a record in the backlog broke the rules
		s.fail(err)
	}
	return message, err
}

// Holder is what the registry calls the harness's principal, see [rpc.Revocable].
func (s *stream) Holder() string { return s.principal }

// Intake returns what the messages are put together in, see [rpc.Metered].
func (s *stream) Intake() *rpc.Intake { return s.in.assembler.intake }

// Write sends a message of up to 64 MiB, see [rpc.Conn]. It waits for its lane,
// and for the peer while too much is unacknowledged. Without a websocket it takes
// as much as may be kept, which goes out on the next websocket.
func (s *stream) Write(message []byte) error {
	switch n := len(message); {
	case n == 0:
		return errEmptyMessage
	case n > maxMessage:
		return errBigMessage
	}
	return s.out.write(message)
}

// WriteParts is Write of a message in parts, see [rpc.PartsWriter].
func (s *stream) WriteParts(size int, parts iter.Seq[[]byte]) error {
	switch {
	case size <= 0:
		return errEmptyMessage
	case size > maxMessage:
		return errBigMessage
	}
	return s.out.writeParts(size, parts)
}

// Close ends the stream at once. What Write has handed to the lane still
// arrives; what is unread is gone.
func (s *stream) Close() error {
	first := s.finish(net.ErrClosed)
	s.in.close(net.ErrClosed)
	if first {
		s.ended(s, nil)
	}
	return nil
}

// Reject ends the stream because of a message that is not JSON-RPC (remote.md 7,
// "invalid JSON"); the link then resets it. [rpc.Peer] calls Reject, since it
// decodes the messages anyway.
func (s *stream) Reject(err error) { s.fail(err) }

// String is the label of the connection in logs and error texts.
func (s *stream) String() string { return "stream " + label(s.id) }

// receive takes a data, ack or resume frame of this stream; others are ignored.
// One goroutine calls it at a time. It never blocks. The payload is decrypted
// in place; nothing of f is kept. An error is a violation, of which ended has
// heard already; after the end frames are ignored.
func (s *stream) receive(f *frame.Frame) error {
	patient := s.out.acknowledged(f)
	var err error
	switch f.Body {
	case frame.Data:
		var got progress
		got, err = s.in.receive(f.Seq, f.Payload, patient)
		if got.news() {
			s.out.received(got)
		}
	case frame.Resume:
		if patient { // a peer that never acknowledges means nothing by a resume
			err = s.out.repeatAll()
		}
	}
	if err != nil {
		s.fail(err)
	}
	return err
}

// suspend takes the websocket away. It returns true if the stream now waits for
// another one, which it does if its peer acknowledges, and false if the stream has
// ended.
func (s *stream) suspend() bool {
	err := s.out.suspend()
	if err != nil {
		s.end(err)
	}
	return err == nil && !s.over.Load()
}

// resume gives the stream a new websocket: a resume frame goes out on it first, then
// everything unacknowledged, then what is written. resume does not wait for that.
func (s *stream) resume(send func(*socket.Message) error) { s.out.resume(send) }

// end ends the stream from outside: a reset by the peer (nil), or the end of
// the link. The reader gets what has arrived, then io.EOF or err.
func (s *stream) end(err error) { s.finish(err) }

// revoke ends the stream since its peer has lost the right to it: what is unread is
// gone, and the reader gets [rpc.ErrRevoked].
func (s *stream) revoke() {
	if s.finish(rpc.ErrRevoked) {
		s.in.drop()
	}
}

// stalled ends the stream, if it has not ended yet, and drops all that the stream
// holds: other streams wait for that memory.
func (s *stream) stalled() {
	s.fail(errStalled)
	s.in.drop()
}

// fail ends the stream from inside.
func (s *stream) fail(err error) {
	if s.finish(err) {
		s.ended(s, err)
	}
}

// finish does what all ways to end a stream have in common. It tells whether this
// is the first end.
func (s *stream) finish(err error) bool {
	if !s.over.CompareAndSwap(false, true) {
		return false
	}
	reading, writing := err, err
	if err == nil {
		reading, writing = io.EOF, net.ErrClosed
	}
	s.in.end(reading)
	s.in.assembler.intake.Close() // tells the end to an rpc.Peer that has stopped reading
	s.out.end(writing)
	s.keys.Wipe()
	return true
}
