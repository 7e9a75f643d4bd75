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

// streamConfig configures a stream.
type streamConfig struct {
	id      []byte         // not changed as long as the stream lives
	session *noise.Session // the stream's own from now on, wiped at its end
	// principal is the registry's name for the harness's principal, "" if unknown or if
	// this end is the harness.
	principal string
	// harness says that this end is a harness. It then acknowledges the first
	// record unasked, so that the other end learns at once that it can
	// (remote.md 8.1). And it stops reading its websocket while there is no
	// room, because the websocket carries no other stream.
	harness bool
	// acknowledges is set when the peer said in its handshake that it acknowledges.
	// A peer that did not say so may still show it with a first acknowledgement.
	acknowledges bool
	// budget bounds the memory of messages, from the arrival of a message until its
	// reader releases it; nil bounds nothing.
	budget *rpc.Budget
	// All streams of a link share the reserves: one for waiting records, one for
	// unacknowledged output. Nil bounds nothing.
	waitingReserve, keptReserve *reserve
	// send sends on the lane of the current websocket, see [socket.Lane.Send]; nil
	// if there is no websocket yet. It must return when the lane ends.
	send func(*socket.Message) error
	// ended is called once when the stream ends from this side: with nil after
	// Close, else with the peer's violation or a loss that cannot be repaired. It
	// is not called after end, revoke or suspend. It may run in any goroutine that
	// holds no mutex.
	ended func(s *stream, err error)
}

// stream is one Noise stream through the relay, after its handshake: a [rpc.Conn]
// at either end (remote.md 7, 8.1, 8.2, 8.4). Writers and readers do nearly all
// work in their own goroutines. Two goroutines of the stream run at times. The pump
// (pump.go) runs while it sends acknowledgements and repeated frames, and ends with
// its lane. goOn (inbound.go) runs while received data waits for memory; Close
// waits for it.
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

// newStream makes the stream of a completed handshake. It sends nothing.
func newStream(cfg streamConfig) *stream {
	s := &stream{id: cfg.id, principal: cfg.principal, keys: cfg.session, ended: cfg.ended}
	intake := rpc.NewIntake(cfg.budget, messagePatience, s.stalled)
	s.in.init(cfg.session, cfg.harness, intake, s.out.received)
	s.out.init(cfg, s.fail)
	s.in.share.reserve, s.out.kept.share.reserve = cfg.waitingReserve, cfg.keptReserve
	return s
}

// Read returns the next message, see [rpc.Conn]. After the peer has ended the
// stream, it first returns the messages that had arrived.
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

// Holder returns the registry's name for the harness's principal, see [rpc.Revocable].
func (s *stream) Holder() string { return s.principal }

// Intake returns the intake that assembles the messages, see [rpc.Metered].
func (s *stream) Intake() *rpc.Intake { return s.in.assembler.intake }

// Write sends a message of up to 64 MiB, see [rpc.Conn]. It waits for its lane,
// and for the peer while too much is unacknowledged. Without a websocket, it
// keeps as much as allowed for the next websocket, and then waits.
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

// Close ends the stream at once. Frames that Write passed to the lane still
// arrive; unread messages are lost.
func (s *stream) Close() error {
	first := s.finish(net.ErrClosed)
	s.in.close(net.ErrClosed)
	if first {
		s.ended(s, nil)
	}
	return nil
}

// Reject ends the stream because of a message that is not JSON-RPC (remote.md 7,
// "invalid JSON"); the link then resets it. [rpc.Peer] calls Reject, because it
// decodes the messages anyway.
func (s *stream) Reject(err error) { s.fail(err) }

// String is the label of the connection in logs and error texts.
func (s *stream) String() string { return "stream " + label(s.id) }

// receive takes a data, ack or resume frame of this stream; it ignores others.
// Only one goroutine may call it at a time. It never blocks. The payload is
// decrypted in place; nothing of f is kept. An error is a violation, which
// ended already got; after the end, frames are ignored.
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
		if patient { // a resume of a peer that never acknowledges has no meaning
			err = s.out.repeatAll()
		}
	}
	if err != nil {
		s.fail(err)
	}
	return err
}

// suspend removes the websocket. It returns true if the stream now waits for
// another one, because its peer acknowledges, and false if the stream has ended.
func (s *stream) suspend() bool {
	err := s.out.suspend()
	if err != nil {
		s.end(err)
	}
	return err == nil && !s.over.Load()
}

// resume gives the stream a new websocket: first it sends a resume frame, then
// everything unacknowledged, then new writes. resume does not wait for that.
func (s *stream) resume(send func(*socket.Message) error) { s.out.resume(send) }

// end ends the stream from outside: a reset by the peer (nil), or the end of
// the link. The reader gets the messages that have arrived, then io.EOF or err.
func (s *stream) end(err error) { s.finish(err) }

// revoke ends the stream because its peer lost the right to it: unread messages are
// dropped, and the reader gets [rpc.ErrRevoked].
func (s *stream) revoke() {
	if s.finish(rpc.ErrRevoked) {
		s.in.drop()
	}
}

// stalled ends the stream, if it has not ended yet, and drops everything that it
// holds, because other streams wait for that memory.
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

// finish does the work common to all ways of ending a stream. It reports whether
// this is the first end.
func (s *stream) finish(err error) bool {
	if !s.over.CompareAndSwap(false, true) {
		return false
	}
	reading, writing := err, err
	if err == nil {
		reading, writing = io.EOF, net.ErrClosed
	}
	s.in.end(reading)
	s.in.assembler.intake.Close() // tells an rpc.Peer that has stopped reading about the end
	s.out.end(writing)
	s.keys.Wipe()
	return true
}
