package rpc

import (
	"slices"
	"sync"
	"time"
)

// Budget bounds the memory of the messages of all connections that share it:
// of those that are arriving, which an [Intake] puts together, and of those
// whose requests have not been served yet. A nil Budget bounds nothing.
//
//	        arriving             being served               that only wait (Leave, Block)
//	large   waits for room ◄──── make it wait                are refused without room
//	small   counts as nothing    make reading wait           are refused without room
//
// A message of up to 64 KiB is small. It does not count before it is whole, since
// a part of it takes no more memory than a connection takes anyway.
//
// Large messages that have begun may each wait for memory that the others hold. So
// that they do not wait for ever, the oldest one that waits may go beyond the
// limit, one at a time and only while the others are within it. And while others
// wait, a connection that holds large messages must make progress within its
// patience, see [NewIntake].
//
// A connection that has little being served is read, whatever others hold.
type Budget struct {
	mu           sync.Mutex // protects the fields below, and what intakes hold
	large, small account
	queue        []*Intake            // large messages that wait for room, in order
	contended    time.Time            // since when messages have been waiting
	overdue      *time.Timer          // fires when the first holder is overdue; nil while nobody waits
	holders      map[*Intake]struct{} // of large messages
	beyond       *Intake              // the unfinished one that may go beyond the limit
	gate         chan struct{}        // closed when reading may go on; nil while nobody waits
}

// account is what one kind of messages takes, in bytes of memory.
type account struct {
	limit     int64
	used      int64 // by what arrives and what is being served
	suspended int64 // by requests that only wait
}

const (
	// maxSmall is the size of the largest small message, in bytes of memory.
	maxSmall = 64 << 10
	// minSmallLimit is the least limit of small messages together.
	minSmallLimit = 16 << 20
	// ownSmall is how much of a connection's small messages may be being served,
	// whatever others hold. Clients that read no answers can use up the limit of
	// small messages for as long as they like; the others go on within ownSmall.
	ownSmall = 256 << 10
	// ownSuspended is what the waiting requests of each connection may hold,
	// whatever those of others do.
	ownSuspended = 256 << 10
)

// NewBudget returns a budget of limit bytes for large messages. Small messages have
// a limit of their own, a quarter of that and at least 16 MiB. Requests that only
// wait may take half as much as either limit beside it.
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

// takeLocked counts a message of n bytes as being served.
func (b *Budget) takeLocked(in *Intake, n int) {
	b.account(n).used += int64(n)
	if n <= maxSmall {
		in.small += n
	} else {
		b.holdLocked(in, n)
	}
}

// holdLocked counts n bytes of large messages as those of in, or no longer if n is
// negative.
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

// untakeLocked counts a message of n bytes as no longer being served, and lets those
// readers go on that can now.
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

// mayReadLocked tells whether the next message of in may be read.
func (b *Budget) mayReadLocked(in *Intake) bool {
	return b.small.used < b.small.limit || in.small < ownSmall
}

// dispatchLocked gives room to the large messages whose turn it is.
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

// contendLocked notes that somebody waits for the memory of others.
func (b *Budget) contendLocked() {
	if b.overdue == nil {
		b.contended = time.Now()
		b.watchLocked()
	}
}

// watchLocked sets the timer to the moment when the first holder is overdue.
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
// that it had waited for. ok is false if in cannot be overdue: because it waits for
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

// evict makes the connections end that are overdue.
func (b *Budget) evict() {
	b.mu.Lock()
	var late []*Intake
	if b.overdue != nil { // else the last one that waited is gone
		now := time.Now()
		for in := range b.holders {
			if at, ok := b.dueLocked(in); ok && !at.After(now) {
				in.since = now // ending takes a while: not again at once
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

// grown notes that the message of in takes n bytes now. They replace what ask took,
// in.want, and what the message held before.
func (b *Budget) grown(in *Intake, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.large.used += int64(n) - in.want - int64(in.held)
	b.holdLocked(in, n-in.held)
	in.held = n
	b.dispatchLocked()
}

// settle ends the message of in, which counts as being served from now on, with n
// bytes; 0 if it was given up. If in waits for room it gives up its place.
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
