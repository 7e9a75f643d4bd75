package relay

import (
	"cmp"
	"time"

	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/socket"
)

// When an acknowledgement goes out on its own, because no data frame has
// carried it (remote.md 8.1).
const (
	ackRecords = 32
	ackBytes   = 256 << 10
	ackDelay   = 20 * time.Millisecond
)

// acknowledgement is the part of a frame about the other direction.
type acknowledgement struct {
	ack, bits uint32
	taken     uint32 // records; 0 means that there is nothing to acknowledge
}

// expressible reports whether a frame other than an ack frame can carry a. In such
// frames, ack 0 without bits means that nothing is acknowledged.
func (a acknowledgement) expressible() bool { return a.ack != 0 || a.bits != 0 }

// owed is the progress that the peer has not been told yet.
type owed struct {
	taken, bits uint32    // see progress
	told        uint32    // taken, as the peer was told last
	bytes       int       // of records since then
	at          time.Time // the latest time to tell the peer; zero: nothing is owed
	now         bool      // the peer must be told at once
	introduced  bool      // a harness has shown the peer that it acknowledges
}

// paid notes that the acknowledgement a is being sent.
func (d *owed) paid(a acknowledgement) {
	d.told, d.bytes, d.at, d.now = a.taken, 0, time.Time{}, false
}

// pump is the state of the pump, which sends the frames that no writer sends: the
// resume frame, acknowledgements and repeated frames. It runs only while such a
// frame is due, in its own goroutine or in the timer's.
type pump struct {
	running  bool
	started  bool // its goroutine was started, but does not run yet
	resuming bool // a resume frame is due

	timer    *time.Timer   // nil until it is needed first
	firesAt  time.Time     // zero: not set
	resendAt time.Time     // when the first frame is repeated; zero: nothing is unacknowledged
	patience time.Duration // from the last progress to resendAt; zero: resendAfter
}

// acknowledgementLocked returns the acknowledgement due now.
func (o *outbound) acknowledgementLocked() acknowledgement {
	if o.owed.taken == 0 {
		return acknowledgement{}
	}
	return acknowledgement{ack: o.owed.taken - 1, bits: o.owed.bits, taken: o.owed.taken}
}

// received notes the progress of the receiving half.
func (o *outbound) received(got progress) {
	o.mu.Lock()
	defer o.mu.Unlock()
	d := &o.owed
	// The reader and the receiver may report their progress in the wrong order.
	switch {
	case got.taken > d.taken:
		d.taken, d.bits = got.taken, got.bits
	case got.taken == d.taken:
		d.bits |= got.bits
	}
	d.bytes += got.received
	switch {
	case o.err != nil || d.taken == 0:
	case o.proven:
		o.owePeerLocked(time.Time{})
	case o.harness && !d.introduced:
		d.introduced, d.now = true, true
		o.wakeLocked()
	}
}

// owePeerLocked makes sure that a peer that acknowledges is told about received
// records: within ackDelay, or at once if they are many. If now is zero, it gets
// the time if needed.
func (o *outbound) owePeerLocked(now time.Time) {
	d := &o.owed
	if d.taken == 0 {
		return
	}
	if d.now || d.taken-d.told >= ackRecords || d.bytes >= ackBytes {
		d.now = true
		o.wakeLocked()
		return
	}
	if d.at.IsZero() {
		if now.IsZero() {
			now = time.Now()
		}
		d.at = now.Add(ackDelay)
		o.scheduleLocked(d.at, now)
	}
}

// expectProgressLocked sets the time by which the peer must acknowledge
// something new.
func (o *outbound) expectProgressLocked(now time.Time) {
	p := &o.pump
	if o.acked == o.next {
		p.resendAt = time.Time{}
		return
	}
	p.patience = cmp.Or(p.patience, resendAfter)
	p.resendAt = now.Add(p.patience)
	o.scheduleLocked(p.resendAt, now)
}

// scheduleLocked makes the timer fire by that time.
func (o *outbound) scheduleLocked(at, now time.Time) {
	p := &o.pump
	if !p.firesAt.IsZero() && !at.Before(p.firesAt) {
		return
	}
	p.firesAt = at
	if p.timer == nil {
		p.timer = time.AfterFunc(at.Sub(now), o.fire)
		return
	}
	p.timer.Reset(at.Sub(now))
}

// fire is the timer's function.
func (o *outbound) fire() {
	o.mu.Lock()
	o.pump.firesAt = time.Time{}
	o.mu.Unlock()
	o.run()
}

// wakeLocked starts the pump. If the pump runs already, it looks for more before it
// ends. Without a websocket the pump has nothing to do.
func (o *outbound) wakeLocked() {
	if o.pump.running || o.pump.started || o.send == nil {
		return
	}
	o.pump.started = true
	go o.run()
}

// run sends frames that are due and sets the timer for the next ones.
func (o *outbound) run() {
	o.mu.Lock()
	p := &o.pump
	p.started = false
	if p.running {
		o.mu.Unlock()
		return
	}
	p.running = true
	failure := o.sendDueLocked()
	p.running = false
	o.ready.Broadcast()
	if o.err == nil && o.send != nil {
		now := time.Now()
		if !o.owed.at.IsZero() {
			o.scheduleLocked(o.owed.at, now)
		}
		if !p.resendAt.IsZero() {
			o.scheduleLocked(p.resendAt, now)
		}
	}
	o.mu.Unlock()
	if failure != nil {
		o.fail(failure)
	}
}

// sendDueLocked sends until no frame is due any more; it unlocks the mutex while
// it sends. An error ends the stream.
func (o *outbound) sendDueLocked() error {
	for o.err == nil && o.send != nil {
		now := time.Now()
		if err := o.expireLocked(now); err != nil {
			return err
		}
		if !o.dueLocked() {
			return nil
		}
		if o.sending {
			o.ready.Wait()
			continue
		}
		_ = o.sendLocked(o.takeLocked(now)) // its error is for a Write
	}
	return nil
}

// expireLocked notes which frames are due now.
func (o *outbound) expireLocked(now time.Time) error {
	p, d := &o.pump, &o.owed
	if !d.at.IsZero() && !now.Before(d.at) {
		d.at, d.now = time.Time{}, true
	}
	if p.resendAt.IsZero() || now.Before(p.resendAt) {
		return nil
	}
	if o.missesLocked() && !o.firstHeld && p.patience >= maxResendAfter {
		return errUnkept
	}
	o.kept.setDue(o.acked)
	o.recover = o.next
	p.patience = min(2*p.patience, maxResendAfter)
	o.expectProgressLocked(now)
	return nil
}

func (o *outbound) dueLocked() bool { return o.pump.resuming || o.owed.now || o.kept.due > 0 }

// takeLocked returns the next frame that is due; there must be one.
func (o *outbound) takeLocked(now time.Time) *socket.Message {
	f := frame.Frame{StreamID: o.id}
	a := o.acknowledgementLocked()
	f.Ack, f.AckBits = a.ack, a.bits
	switch {
	case o.pump.resuming:
		o.pump.resuming = false
		f.Body, f.NextSeq = frame.Resume, o.next
		o.kept.setAllDue()
		o.pump.patience = 0
		o.expectProgressLocked(now)
		if a.expressible() {
			o.owed.paid(a)
		}
	case o.owed.now:
		f.Body = frame.Ack
		o.owed.paid(a)
	default:
		return o.kept.takeDue(now)
	}
	m := socket.NewMessage(frame.MaxDataHeader + len(o.id))
	m.Bytes = f.Append(m.Bytes)
	return m
}
