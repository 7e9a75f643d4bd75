package relay

import (
	"fmt"
	"iter"
	"math"
	"math/bits"
	"net"
	"sync"
	"time"

	"github.com/execagent/execagent/buffer"
	"github.com/execagent/execagent/relay/frame"
	"github.com/execagent/execagent/relay/noise"
	"github.com/execagent/execagent/relay/socket"
	"github.com/execagent/execagent/rpc"
)

// maxOvertaken is how many writers may overtake those who wait for their turn:
// waking them costs time, but they must not starve.
const maxOvertaken = 8

// outbound is the sending half of a stream.
//
// Of writers, one at a time has the turn, for a whole message. It and the pump,
// which sends what nobody writes, take turns at sending, frame by frame; the
// pump goes first.
type outbound struct {
	id      []byte
	keys    *noise.Session
	harness bool
	fail    func(error) // ends the stream

	mu      sync.Mutex // protects the fields below
	err     error      // the end
	send    func(*socket.Message) error
	attempt int // counts websockets, so that an error of an old one is known as such
	next    uint32
	proven  bool   // the peer has acknowledged something, or said that it will
	acked   uint32 // frames below it are acknowledged
	// firstHeld says that the peer has the frame acked, though it has yet to
	// take it.
	firstHeld bool
	// recover is set when a frame was lost: those below it may be lost as well,
	// or were dropped by the peer because they were too far ahead.
	recover   uint32
	kept      kept
	forgotten bool // too much was sent unacknowledged: nothing is kept before proof

	writing   bool      // a writer has the turn
	turn      sync.Cond // for those who wait for it
	waiting   int
	overtaken int

	sending bool      // a frame is being sealed or sent
	ready   sync.Cond // for the writer whose turn it is, and the pump

	pump pump
	owed owed
}

func (o *outbound) init(cfg streamConfig, fail func(error)) {
	o.id, o.keys, o.harness, o.fail, o.send = cfg.id, cfg.session, cfg.harness, fail, cfg.send
	o.proven = cfg.acknowledges
	o.turn.L, o.ready.L = &o.mu, &o.mu
}

// write sends a message of at most maxMessage bytes.
func (o *outbound) write(message []byte) error {
	if err := o.takeTurn(); err != nil {
		return err
	}
	n := min(len(message), maxRecord-prefixSize)
	err := o.record(len(message), message[:n])
	for message = message[n:]; err == nil && len(message) > 0; message = message[n:] {
		n = min(len(message), maxRecord)
		err = o.record(0, message[:n])
	}
	o.endTurn()
	return err
}

// writeParts sends a message of size bytes that comes in parts.
func (o *outbound) writeParts(size int, parts iter.Seq[[]byte]) error {
	if err := o.takeTurn(); err != nil {
		return err
	}
	defer o.endTurn()
	record := buffer.Get(maxRecord)[:0]
	defer func() { buffer.Recycle(record) }()
	length, left := size, size
	room := maxRecord - prefixSize
	send := func() error {
		err := o.record(length, record)
		record, length, room = record[:0], 0, maxRecord
		return err
	}
	for part := range parts {
		if left -= len(part); left < 0 {
			break
		}
		for len(part) > 0 {
			n := min(room-len(record), len(part))
			record = append(record, part[:n]...)
			part = part[n:]
			if len(record) < room {
				continue
			}
			if err := send(); err != nil {
				return err
			}
		}
	}
	if left != 0 {
		o.fail(rpc.ErrParts)
		return rpc.ErrParts
	}
	if len(record) == 0 {
		return nil
	}
	return send()
}

func (o *outbound) takeTurn() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.waiting > 0 {
		o.overtaken++
	}
	if o.writing || o.overtaken > maxOvertaken {
		o.waiting++
		for o.err == nil {
			o.turn.Wait()
			if !o.writing {
				break
			}
		}
		o.waiting--
		o.overtaken = 0
	}
	if o.err != nil {
		return o.err
	}
	o.writing = true
	return nil
}

func (o *outbound) endTurn() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.writing = false
	o.turn.Signal()
}

// record seals and sends one record; length is the prefix in front of data, if
// any. Only who has the turn calls it.
func (o *outbound) record(length int, data []byte) error {
	o.mu.Lock()
	for o.err == nil && o.mustWaitLocked() {
		o.ready.Wait()
	}
	if o.err != nil {
		defer o.mu.Unlock()
		return o.err
	}
	if o.next == math.MaxUint32 {
		o.mu.Unlock()
		o.fail(errExhausted)
		return errExhausted
	}
	o.sending = true
	seq := o.next
	a := o.acknowledgementLocked()
	if a.expressible() {
		o.owed.paid(a)
	}
	o.mu.Unlock()

	m, err := sealRecord(o.keys, o.id, a, seq, length, data)
	if err != nil {
		o.mu.Lock()
		o.sentLocked()
		if o.err != nil {
			err = o.err
		}
		o.mu.Unlock()
		o.fail(err)
		return err
	}

	o.mu.Lock()
	if o.err != nil {
		defer o.mu.Unlock()
		m.Release()
		o.sentLocked()
		return o.err
	}
	o.next++
	o.keepLocked(m)
	send, attempt := o.send, o.attempt
	if o.pump.resuming { // the resume frame comes first; the pump sends both
		send = nil
	}
	o.mu.Unlock()
	if send == nil {
		m.Release()
	} else {
		err = send(m)
	}

	o.mu.Lock()
	defer o.mu.Unlock()
	o.sentLocked()
	if err != nil {
		return o.sendFailedLocked(attempt, err)
	}
	return nil
}

// mustWaitLocked tells why the next record cannot be sealed yet: somebody else sends,
// the peer has to acknowledge first, or there is no websocket and nothing can be
// kept for another one.
func (o *outbound) mustWaitLocked() bool {
	if o.sending || o.pump.running {
		return true
	}
	if o.proven {
		return o.kept.bytes > maxKeptBytes-largestFrame || !o.kept.share.fits(largestFrame)
	}
	return o.send == nil
}

// sentLocked ends what began by setting sending.
func (o *outbound) sentLocked() {
	o.sending = false
	o.ready.Broadcast()
}

// sendFailedLocked notes that a websocket is of no more use; the link will say so too.
// A frame that is kept goes out on the next one. It returns the error of a
// write.
func (o *outbound) sendFailedLocked(attempt int, err error) error {
	if o.err != nil {
		return o.err
	}
	if attempt == o.attempt {
		o.send = nil
	}
	if o.proven {
		return nil
	}
	return fmt.Errorf("sending a record: %w", err)
}

// keepLocked keeps a frame for being sent again, if its peer may ask for it.
func (o *outbound) keepLocked(m *socket.Message) {
	switch {
	case o.proven:
		o.kept.add(m)
		if o.pump.resendAt.IsZero() {
			o.expectProgressLocked(time.Now())
		}
	case o.forgotten:
		o.kept.release(o.next)
	case o.kept.frames.len() >= maxUnprovenFrames || o.kept.bytes+cap(m.Bytes) > maxUnprovenBytes:
		o.forgotten = true
		o.kept.release(o.next)
	default:
		o.kept.add(m)
	}
}

// acknowledged takes what a frame of the peer acknowledges. It tells whether the
// peer has ever acknowledged anything.
func (o *outbound) acknowledged(f *frame.Frame) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil && f.Acknowledges() {
		o.acknowledgeLocked(f.Ack, f.AckBits)
	}
	return o.proven
}

func (o *outbound) acknowledgeLocked(ack, ackBits uint32) {
	if uint64(ack)+uint64(bits.Len32(ackBits)) >= uint64(o.next) {
		return // what was never sent: means nothing, as all of it in the reference
	}
	now := time.Now()
	proof := !o.proven
	if proof {
		o.proven = true
		o.owePeerLocked(now)
	}
	if ack+1 < o.acked {
		return // old
	}
	progress := ack+1 > o.acked
	if progress {
		o.acked = ack + 1
		o.kept.release(o.acked)
		o.ready.Broadcast()
	}
	if progress || proof {
		o.pump.patience = 0
		o.expectProgressLocked(now)
	}
	o.firstHeld = ackBits&1 != 0
	for i := range bits.Len32(ackBits) {
		if seq := ack + 1 + uint32(i); ackBits>>i&1 != 0 {
			o.kept.setHeld(seq)
		} else {
			o.kept.setHole(seq, now)
			o.recover = o.next
		}
	}
	if progress {
		// As far as bits reach, what the peer does not have is known; the rest
		// follows when it has acknowledged this.
		for seq := o.acked; seq < o.recover && seq-o.acked < 32; seq++ {
			o.kept.setHole(seq, now)
		}
	}
	if o.kept.due > 0 {
		o.wakeLocked()
	}
}

// missesLocked tells whether a frame that may have to be sent again is not kept.
func (o *outbound) missesLocked() bool { return o.acked < o.kept.first }

// repeatAll answers the resume frame of a peer that acknowledges.
func (o *outbound) repeatAll() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return nil
	}
	if o.missesLocked() {
		return errUnkept
	}
	o.kept.setAllDue()
	o.owed.now = o.owed.taken > 0
	o.wakeLocked()
	return nil
}

// suspend forgets the websocket. An error means that there is no going on with
// another.
func (o *outbound) suspend() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.attempt++
	o.send, o.pump.resuming = nil, false
	switch {
	case o.err != nil:
		return nil // it has ended before
	case !o.proven:
		return errLaneLost
	case o.missesLocked():
		return errUnkept
	}
	return nil
}

// resume goes on with a new websocket.
func (o *outbound) resume(send func(*socket.Message) error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return
	}
	o.attempt++
	o.send, o.pump.resuming = send, true
	o.wakeLocked()
}

// end makes all writers fail and forgets what is kept.
func (o *outbound) end(err error) {
	if err == nil {
		err = net.ErrClosed
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = err
	o.send = nil
	o.kept.release(o.next)
	if o.pump.timer != nil {
		o.pump.timer.Stop()
	}
	o.turn.Broadcast()
	o.ready.Broadcast()
}
