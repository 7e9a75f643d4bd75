package relay

import (
	"errors"
	"math"
	"sync"
	"time"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/internal/relay/noise"
	"github.com/execagent/execagent/rpc"
)

// Bounds of the data that waits for the reader of a stream.
const (
	maxUnread = 128 // messages (remote.md 8.2)
	// maxUnreadBytes is reached if the reader is late with large messages. A
	// peer that acknowledges must wait from patientUnreadBytes on.
	maxUnreadBytes     = 2 * maxMessage
	patientUnreadBytes = 1 << 20
	// maxBacklog is in bytes of memory. It is twice the bytes that our own sending
	// half leaves unacknowledged, so that a peer of our kind never reaches it.
	maxBacklog = 2 * maxKeptBytes
	// backlogPiece is the least memory of one piece, in bytes: small records
	// share one.
	backlogPiece = 4 << 10
)

var (
	errUnread    = errors.New("receiving data: too many messages wait to be read")
	errBacklog   = errors.New("receiving data: the peer does not wait for the reader")
	errStalled   = errors.New("receiving data: the peer does not go on with a message")
	errExhausted = errors.New("the stream has carried as many records as it may")
)

// messagePatience is how long a peer may take for the next part of a large
// message, see [rpc.NewIntake].
const messagePatience = 90 * time.Second

// inbound is the receiving half of a stream.
type inbound struct {
	keys  *noise.Session
	moved func(progress) // gets the progress of goOn; receive and read return their progress
	going sync.WaitGroup // the goroutine of goOn

	mu      sync.Mutex // protects the fields below
	arrived sync.Cond  // signalled for a message, or the end
	room    sync.Cond  // signalled for room for a message, or the end
	err     error      // the end; io.EOF when it was orderly
	// pushes says that the caller of receive waits for room before it goes on
	// (waitForRoom). Too many unread messages are then our reader's fault, not a
	// violation by the peer.
	pushes bool
	// patient says that the peer sends dropped records again, and waits if its
	// records are not acknowledged (remote.md 8.1).
	patient bool
	next    uint32 // sequence number of the next record in order
	taken   uint32 // records below it are all in assembler and unread
	early   reorder
	share   part // of the reserve, taken by early and backlog
	// backlog holds the plaintext of the records from taken to next that did
	// not fit into unread.
	backlog      fifo[piece]
	backlogBytes int // of memory
	assembler    assembler
	waits        bool          // the goroutine of goOn waits for memory
	dropped      chan struct{} // closed by stopWaitingLocked
	unread       fifo[[]byte]
	unreadBytes  int
}

// piece is the plaintext of one or more records.
type piece struct {
	data []byte
	used int    // bytes that the assembler has
	end  uint32 // sequence number after its last record
}

// progress is what the sending half must tell the peer about the receiving half.
type progress struct {
	taken    uint32 // see inbound
	bits     uint32 // bit i: record taken+i is here (remote.md 8.1)
	received int    // bytes of records that came or were taken
	again    bool   // a record came again: its acknowledgement may be lost
	early    bool   // a record came before its turn
}

func (p *progress) news() bool { return p.received > 0 || p.again || p.early }

func (in *inbound) init(keys *noise.Session, pushes bool, intake *rpc.Intake, moved func(progress)) {
	in.keys, in.pushes, in.assembler.intake, in.moved = keys, pushes, intake, moved
	in.dropped = make(chan struct{})
	in.early.share = &in.share
	in.arrived.L, in.room.L = &in.mu, &in.mu
}

// read returns the next message, or the end in.err. It may find a violation by the
// peer in the backlog, which becomes in.err and is returned after the messages
// before it.
func (in *inbound) read() (message []byte, got progress, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for {
		if in.unread.len() > 0 {
			message = in.unread.pop()
			in.unreadBytes -= len(message)
			in.room.Signal()
			if in.backlog.len() > 0 {
				got = in.refillLocked()
			}
			return message, got, nil
		}
		if in.err != nil && !in.waits {
			return nil, progress{}, in.err
		}
		in.arrived.Wait()
	}
}

// receive takes the record with the sequence number seq, see stream.receive.
func (in *inbound) receive(seq uint32, record []byte, patient bool) (progress, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.err != nil {
		return progress{}, nil
	}
	in.patient = in.patient || patient
	var got progress
	var err error
	switch {
	case seq < in.next:
		got.again = true // the second copy is not opened: the first one counts
	case seq > in.next:
		got.early = true
		if err = in.early.hold(in.next, seq, record); in.patient {
			err = nil // a record without room is dropped, and comes again
		}
	case in.patient && in.backlog.len() > 0 && !in.share.fits(len(record)):
		got.early = true // the record is dropped, and comes again
	default:
		err = in.recordLocked(record, &got)
		for err == nil {
			if record = in.early.take(in.next); record == nil {
				break
			}
			err = in.recordLocked(record, &got)
			buffer.Recycle(record)
		}
	}
	if err != nil {
		return progress{}, err
	}
	in.reportLocked(&got)
	return got, nil
}

// recordLocked opens the next record in order.
func (in *inbound) recordLocked(record []byte, got *progress) error {
	if in.next == math.MaxUint32 {
		return errExhausted
	}
	size := len(record)
	plaintext, err := openRecord(in.keys, record)
	if err != nil {
		return err
	}
	in.next++
	if in.backlog.len() == 0 {
		plaintext, err = in.deliverLocked(plaintext)
		if err != nil {
			return err
		}
		if len(plaintext) == 0 {
			in.taken = in.next
			got.received += size
			return nil
		}
	}
	got.early = true
	return in.postponeLocked(plaintext)
}

// deliverLocked makes messages from plaintext, and returns the part that must wait:
// for memory or, if the peer is patient, for room among the unread messages. A peer
// that is not patient breaks the rules by sending more than fits. With pushes, our
// reader is to blame instead, and the message is taken.
func (in *inbound) deliverLocked(plaintext []byte) (rest []byte, err error) {
	for len(plaintext) > 0 {
		full := in.fullLocked()
		if full && in.patient {
			in.assembler.intake.Pause()
			return plaintext, nil
		}
		var message []byte
		message, plaintext, err = in.assembler.next(plaintext)
		switch {
		case err != nil:
			return nil, err
		case message == nil:
			if len(plaintext) > 0 && !in.waits {
				in.waits = true
				starved := in.assembler.starved
				in.going.Go(func() { in.goOn(starved) })
			}
			return plaintext, nil
		case full && !in.pushes:
			in.assembler.intake.Recycle(message)
			return nil, errUnread
		}
		in.unread.push(message)
		in.unreadBytes += len(message)
		in.arrived.Signal()
	}
	return nil, nil
}

// goOn waits until there is memory, or the stream is dropped, and then delivers
// the backlog.
func (in *inbound) goOn(granted <-chan struct{}) {
	select {
	case <-granted:
	case <-in.dropped:
		return
	}
	in.mu.Lock()
	in.waits = false
	got := in.refillLocked()
	in.arrived.Signal() // read returns an end only once waits is false
	in.mu.Unlock()
	if got.news() {
		in.moved(got)
	}
}

// waitForRoom waits until our reader has caught up, or the stream has ended. It
// returns at once for a peer that acknowledges. While it waits, its caller does
// not read the websocket, which stops the peer. So the websocket must carry no
// other stream.
func (in *inbound) waitForRoom() {
	in.mu.Lock()
	defer in.mu.Unlock()
	for in.err == nil && !in.patient && in.fullLocked() {
		in.room.Wait()
	}
}

func (in *inbound) fullLocked() bool {
	limit := maxUnreadBytes
	if in.patient || in.pushes {
		limit = patientUnreadBytes
	}
	n := in.unread.len()
	return n > 0 && (n >= maxUnread || in.unreadBytes >= limit || in.assembler.intake.Crowded())
}

// postponeLocked puts the plaintext of the record before in.next, which may be
// empty, into the backlog.
func (in *inbound) postponeLocked(plaintext []byte) error {
	if n := in.backlog.len(); n > 0 {
		last := in.backlog.at(n - 1)
		if len(last.data)+len(plaintext) <= cap(last.data) {
			last.data = append(last.data, plaintext...)
			last.end = in.next
			return nil
		}
	}
	data := append(buffer.Get(max(len(plaintext), backlogPiece)), plaintext...)
	if in.backlogBytes+cap(data) > maxBacklog || !in.patient && in.backlog.len() > 0 && !in.share.fits(cap(data)) {
		buffer.Recycle(data)
		return errBacklog
	}
	in.backlog.push(piece{data: data, end: in.next})
	in.backlogBytes += cap(data)
	in.share.add(cap(data))
	return nil
}

// refillLocked delivers the backlog, as far as there is room.
func (in *inbound) refillLocked() progress {
	var got progress
	for in.backlog.len() > 0 {
		first := in.backlog.at(0)
		rest, err := in.deliverLocked(first.data[first.used:])
		if err != nil {
			if in.err == nil {
				in.err = err
			}
			in.dropBacklogLocked()
			return progress{}
		}
		first.used = len(first.data) - len(rest)
		if len(rest) > 0 {
			break
		}
		in.taken = first.end
		got.received += len(first.data)
		in.dropPieceLocked()
	}
	if in.err != nil && in.backlog.len() == 0 {
		in.assembler.drop() // the rest of the message will not come
	}
	in.reportLocked(&got)
	return got
}

func (in *inbound) dropPieceLocked() {
	data := in.backlog.pop().data
	in.backlogBytes -= cap(data)
	in.share.add(-cap(data))
	buffer.Recycle(data)
}

func (in *inbound) dropBacklogLocked() {
	for in.backlog.len() > 0 {
		in.dropPieceLocked()
	}
}

// reportLocked completes got with the records received so far.
func (in *inbound) reportLocked(got *progress) {
	got.taken = in.taken
	if in.next == in.taken && in.early.records == nil {
		return
	}
	for i := range uint32(32) {
		if seq := in.taken + i; seq >= in.taken && seq < in.next || in.early.has(seq) {
			got.bits |= 1 << i
		}
	}
}

// end gives the reader the messages that have arrived, and then err. It drops
// records that wait for memory, because they were never acknowledged and the end
// must not wait for memory.
func (in *inbound) end(err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.err == nil {
		in.err = err
	}
	in.early.drop()
	if in.waits {
		in.stopWaitingLocked()
		in.dropBacklogLocked()
	}
	if in.backlog.len() == 0 {
		in.assembler.drop() // the rest of the message will not come
	}
	in.arrived.Broadcast()
	in.room.Broadcast()
}

// close drops unread messages, and waits for the goroutine of goOn. From now on the
// reader gets err. The caller must hold no mutex of either half of the stream,
// because goOn locks both.
func (in *inbound) close(err error) {
	in.mu.Lock()
	in.err = err
	in.mu.Unlock()
	in.drop()
	in.going.Wait() // after drop nothing starts another one
}

// stopWaitingLocked ends goOn. Nothing is delivered after it.
func (in *inbound) stopWaitingLocked() {
	in.waits = false
	select {
	case <-in.dropped:
	default:
		close(in.dropped)
	}
}

// drop forgets unread messages; end comes before it.
func (in *inbound) drop() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.stopWaitingLocked()
	in.early.drop()
	in.dropBacklogLocked()
	in.assembler.drop()
	for in.unread.len() > 0 {
		in.assembler.intake.Recycle(in.unread.pop())
	}
	in.unreadBytes = 0
	in.arrived.Broadcast()
	in.room.Broadcast()
}
