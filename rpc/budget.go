package rpc

import (
	"slices"
	"sync"
	"time"
)

// Budget bounds the memory of the messages of all connections that share it: of
// arriving messages, which an [Intake] assembles, and of messages whose
// requests were not served yet. A nil Budget bounds nothing.
//
//	        arriving             being served               that only wait (Leave, Block)
//	large   waits for room ◄──── make it wait                are refused without room
//	small   counts as nothing    make reading wait           are refused without room
//
// A message of up to 64 KiB is small. It does not count before it is complete,
// because a part of it takes no more memory than a connection takes anyway.
//
// Incomplete large messages may each wait for memory that the others hold. So that
// they do not wait for ever, the oldest waiting one may exceed the limit, one at a
// time and only while the others are within it. And while others wait, a
// connection that holds large messages must make progress within its patience, see
// [NewIntake].
//
// A connection with few bytes being served is always read, whatever others hold.
type Budget struct {
	mu           sync.Mutex // protects the fields below, and what intakes hold
	large, small account
	queue        []*Intake            // large messages that wait for room, in order
	contended    time.Time            // the time since which messages have been waiting
	overdue      *time.Timer          // fires when the first holder is overdue; nil if none waits
	holders      map[*Intake]struct{} // of large messages
	beyond       *Intake              // the unfinished one that may go beyond the limit
	gate         chan struct{}        // closed when reading may continue; nil while no reader waits
}

// account is the memory of one kind of messages, in bytes.
type account struct {
	limit     int64
	used      int64 // by messages that arrive or are being served
	suspended int64 // by requests that only wait
}

const (
	// maxSmall is the size of the largest small message, in bytes of memory.
	maxSmall = 64 << 10
	// minSmallLimit is the least limit of small messages together.
	minSmallLimit = 16 << 20
	// ownSmall is how many bytes of a connection's small messages may be served
	// at once, whatever others hold. Clients that read no answers can use up the
	// limit of small messages for as long as they like; the others continue
	// within ownSmall.
	ownSmall = 256 << 10
	// ownSuspended is how many bytes the waiting requests of each connection
	// may hold, whatever others hold.
	ownSuspended = 256 << 10
)

// NewBudget returns a budget of limit bytes for large messages. Small messages have
// their own limit, a quarter of that and at least 16 MiB. Requests that only wait
// may take half as much as either limit in addition.
func NewBudget(limit int64) *Budget {
	return &Budget{
		large: account{limit: limit}, small: account{limit: max(limit/4, minSmallLimit)},
		holders: make(map[*Intake]struct{}),
	}
}

// Usage returns the memory that all messages take, in bytes, and the limits of large and small
// ones together.
func (b *Budget) Usage() (used, limit int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.large.used + b.large.suspended + b.small.used + b.small.suspended, b.large.limit + b.small.limit
}

// account returns the account in which a message of n bytes of memory counts.
func (b *Budget) account(n int) *account {
	if n > maxSmall {
		return &b.large
	}
	return &b.small
}

// takeLocked starts counting a message of n bytes as being served.
func (b *Budget) takeLocked(in *Intake, n int) {
	b.account(n).used += int64(n)
	if n <= maxSmall {
		in.small += n
	} else {
		b.holdLocked(in, n)
	}
}

// holdLocked adds n bytes of large messages to the count of in; n may be negative.
func (b *Budget) holdLocked(in *Intake, n int) {
	if in.large == 0 {
		in.since = time.Now()
	}
	if in.large += n; in.large == 0 {
		delete(b.holders, in)
	} else {
		b.holders[in] = struct{}{}
	}
}

// untakeLocked stops counting a message of n bytes as being served, and wakes
// readers that can now continue.
func (b *Budget) untakeLocked(in *Intake, n int) {
	b.account(n).used -= int64(n)
	had := in.small
	if n <= maxSmall {
		in.small -= n
	} else {
		b.holdLocked(in, -n)
		in.since = time.Now()
	}
	if b.gate != nil && (b.small.used < b.small.limit || had >= ownSmall && in.small < ownSmall) {
		close(b.gate)
		b.gate = nil
	}
	b.dispatchLocked()
}

// mayReadLocked reports whether the next message of in may be read.
func (b *Budget) mayReadLocked(in *Intake) bool {
	return b.small.used < b.small.limit || in.small < ownSmall
}

// dispatchLocked gives room to the next large messages in the queue.
func (b *Budget) dispatchLocked() {
	for len(b.queue) > 0 {
		in := b.queue[0]
		if b.large.used+in.want > b.large.limit {
			if b.beyond != nil || b.large.used > b.large.limit {
				b.contendLocked()
				return
			}
			b.beyond = in
		}
		b.queue = slices.Delete(b.queue, 0, 1)
		b.large.used += in.want
		in.since = time.Now()
		close(in.granted)
	}
	if b.overdue != nil {
		b.overdue.Stop()
		b.overdue = nil
	}
}

// contendLocked notes that a connection waits for the memory of others.
func (b *Budget) contendLocked() {
	if b.overdue == nil {
		b.contended = time.Now()
		b.watchLocked()
	}
}

// watchLocked sets the timer to the time when the first holder is overdue.
func (b *Budget) watchLocked() {
	b.overdue = nil
	var first time.Time
	for in := range b.holders {
		if at, ok := b.dueLocked(in); ok && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	if !first.IsZero() {
		b.overdue = time.AfterFunc(time.Until(first), b.evict)
	}
}

// dueLocked returns when in is overdue: its patience after the last of these events:
// others began to wait, in began to hold large messages, gave one back, or got room
// that it had waited for. ok is false if in cannot be overdue, because it waits for
// room itself, or because nothing could end its connection.
func (b *Budget) dueLocked(in *Intake) (at time.Time, ok bool) {
	if in.stalled == nil || slices.Contains(b.queue, in) {
		return at, false
	}
	from := in.since
	if from.Before(b.contended) {
		from = b.contended
	}
	return from.Add(in.patience), true
}

// evict ends overdue connections.
func (b *Budget) evict() {
	b.mu.Lock()
	var late []*Intake
	if b.overdue != nil { // else the last waiting one is gone
		now := time.Now()
		for in := range b.holders {
			if at, ok := b.dueLocked(in); ok && !at.After(now) {
				in.since = now // ending takes a while, so do not end it again at once
				late = append(late, in)
			}
		}
		b.watchLocked()
	}
	b.mu.Unlock()
	for _, in := range late {
		in.stalled()
	}
}

// ask takes n bytes for the large message of in. It returns nil if it got them,
// else a channel that is closed once it has.
func (b *Budget) ask(in *Intake, n int64) (granted <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	in.want = n
	if b.beyond == in {
		b.large.used += n
		return nil
	}
	in.granted = make(chan struct{})
	b.queue = append(b.queue, in)
	b.dispatchLocked()
	if closed(in.granted) {
		return nil
	}
	return in.granted
}

// grown notes that the message of in now takes n bytes. They replace in.want, which
// ask took, and the bytes that the message held before.
func (b *Budget) grown(in *Intake, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.large.used += int64(n) - in.want - int64(in.held)
	b.holdLocked(in, n-in.held)
	in.held = n
	b.dispatchLocked()
}

// settle ends the message of in, which from now on counts as being served, with n
// bytes; 0 if it was dropped. If in waits for room, it gives up its place.
func (b *Budget) settle(in *Intake, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.queue, in); i >= 0 {
		b.queue = slices.Delete(b.queue, i, i+1)
	} else if in.waiting { // it was granted in the meantime
		b.large.used -= in.want
	}
	if b.beyond == in {
		b.beyond = nil
	}
	if in.held > 0 {
		b.large.used -= int64(in.held)
		b.holdLocked(in, -in.held)
	}
	b.takeLocked(in, n)
	b.dispatchLocked()
}
