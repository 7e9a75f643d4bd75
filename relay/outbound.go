package relay

import (
	"fmt"
	"iter"
	"math"
	"math/bits"
	"net"
	"sync"
	"time"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/noise"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/rpc"
)

// maxOvertaken is how many writers may overtake waiting writers. Overtaking
// saves the time to wake a goroutine, but waiting writers must not starve.
const maxOvertaken = 8

// outbound is the sending half of a stream. One writer at a time has the turn, for
// a whole message. The pump (pump.go) sends all other frames: acknowledgements and
// repeated frames. The writer and the pump take turns at sending, frame by frame,
// and the pump goes first.
type outbound struct {
	id      []byte
	keys    *noise.Session
	harness bool
	fail    func(error) // ends the stream

	mu      sync.Mutex                  // protects the fields below
	err     error                       // the reason of the stream's end; nil before
	send    func(*socket.Message) error // the lane's; nil without a websocket
	attempt int                         // counts websockets: an error of an old one says nothing about send
	next    uint32                      // sequence number of the next record
	proven  bool                        // the peer has acknowledged a frame, or said that it will
	acked   uint32                      // frames below it are acknowledged
	// firstHeld says that the peer has the frame with the number acked, but has not
	// taken it yet.
	firstHeld bool
	// recover is the value of next when a loss was last noticed. Frames below
	// recover may be lost too, or the peer may have dropped them because they
	// came too far ahead of the lost one.
	recover   uint32
	kept      kept
	forgotten bool // too much was sent unacknowledged: no more frames are kept until the peer is proven

	writing   bool      // a writer has the turn
	turn      sync.Cond // signalled when the turn is free
	waiting   int       // writers that wait for the turn
	overtaken int       // writers that came later and had the turn before the waiting ones

	sending bool      // a frame is being sealed or sent
	ready   sync.Cond // signalled for the writer whose turn it is, and for the pump

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

// record seals and sends one record. A length above 0 is put in front of data. Only
// the writer with the turn calls it.
func (o *outbound) record(length int, data []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.err == nil && o.mustWaitLocked() {
		o.ready.Wait()
	}
	if o.err != nil {
		return o.err
	}
	if o.next == math.MaxUint32 {
		return o.failLocked(errExhausted)
	}
	m, err := o.sealLocked(length, data)
	if err != nil {
		return err
	}
	o.next++
	o.keepLocked(m)
	if o.send == nil || o.pump.resuming { // the pump sends the resume frame first, and m after it
		m.Release()
		o.sentLocked()
		return nil
	}
	return o.sendLocked(m)
}

// sealLocked seals the next record; it unlocks the mutex meanwhile. After an error
// the stream is over.
func (o *outbound) sealLocked(length int, data []byte) (*socket.Message, error) {
	a := o.acknowledgementLocked()
	if a.expressible() {
		o.owed.paid(a)
	}
	h := frame.DataHeader{StreamID: o.id, Ack: a.ack, AckBits: a.bits, Seq: o.next}
	o.sending = true
	o.mu.Unlock()
	m, err := sealRecord(o.keys, h, length, data)
	o.mu.Lock()
	switch {
	case err == nil && o.err == nil:
		return m, nil
	case err == nil:
		m.Release()
	}
	o.sentLocked()
	if o.err != nil {
		return nil, o.err
	}
	return nil, o.failLocked(err)
}

// sendLocked sends a frame on the current websocket; it unlocks the mutex
// meanwhile. The error comes from sendFailedLocked.
func (o *outbound) sendLocked(m *socket.Message) error {
	send, attempt := o.send, o.attempt
	o.sending = true
	o.mu.Unlock()
	err := send(m)
	o.mu.Lock()
	o.sentLocked()
	if err != nil {
		return o.sendFailedLocked(attempt, err)
	}
	return nil
}

// failLocked ends the stream with err and returns err; it unlocks the mutex
// meanwhile.
func (o *outbound) failLocked(err error) error {
	o.mu.Unlock()
	o.fail(err)
	o.mu.Lock()
	return err
}

// mustWaitLocked reports whether the next record cannot be sealed yet: a frame
// is being sent, the peer must acknowledge first, or there is no websocket and
// no more frames may be kept for the next one.
func (o *outbound) mustWaitLocked() bool {
	if o.sending || o.pump.running {
		return true
	}
	if o.proven {
		return o.kept.bytes > maxKeptBytes-largestFrame || !o.kept.share.fits(largestFrame)
	}
	return o.send == nil
}

// sentLocked notes that a frame was sealed and sent, and wakes goroutines that
// wait for that.
func (o *outbound) sentLocked() {
	o.sending = false
	o.ready.Broadcast()
}

// sendFailedLocked notes that the websocket with that attempt is unusable, which
// the owner of the stream notices by itself. It returns the error of the Write
// whose frame was lost: nil if the frame is kept and will be sent on the next
// websocket.
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

// keepLocked keeps a frame in case it must be sent again, unless the peer is not
// proven and too much is already kept.
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

// acknowledged evaluates the acknowledgement in a frame of the peer. It reports
// whether the peer has ever acknowledged anything.
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
		return // frames that were never sent: ignored, as the reference ignores all acknowledgements
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
		// The bits of the peer show missing frames only as far as they reach.
		// Later frames follow once the peer has acknowledged these.
		for seq := o.acked; seq < o.recover && seq-o.acked < 32; seq++ {
			o.kept.setHole(seq, now)
		}
	}
	if o.kept.due > 0 {
		o.wakeLocked()
	}
}

// missesLocked reports whether a frame that may have to be sent again is not kept.
func (o *outbound) missesLocked() bool { return o.acked < o.kept.first }

// repeatAll answers the resume frame of a peer that acknowledges: it sends all
// frames again that the peer may lack.
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

// suspend forgets the websocket. An error says why the stream cannot continue
// on another one.
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

// resume continues on a new websocket.
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

// end makes all writers fail and forgets the kept frames.
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
