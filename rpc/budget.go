package rpc

import (
	"slices"
	"sync"
)

// Budget bounds the memory of the messages of all connections that share it:
// of those that are arriving, which an [Intake] puts together, and of those
// whose requests have not been served yet. A nil Budget bounds nothing.
//
//	        arriving             being served               that only wait (Leave, Block)
//	large   waits for room ◄──── make it wait                are refused without room
//	small   counts as nothing    make all reading wait       are refused without room
//
// A message of up to 64 KiB is small: what is cut off within it takes no more
// than a connection does anyway. Of the large ones that wait, the oldest goes
// beyond the limit, one at a time and only while the others are within it: so
// messages that wait for each other's memory cannot wait for ever.
type Budget struct {
	mu           sync.Mutex // protects the fields below
	large, small account
	queue        []*Intake     // large messages that wait for room, in order
	first        *Intake       // an unfinished one that need not wait
	gate         chan struct{} // closed when reading may go on; nil while nobody waits
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
	// ownSuspended is what the waiting requests of each connection may hold,
	// whatever those of others do.
	ownSuspended = 4 << 20
)

// NewBudget returns a budget of limit bytes for large messages. Small ones have
// a quarter of it beside, and at least 16 MiB; requests that only wait have
// half as much again of either.
func NewBudget(limit int64) *Budget {
	return &Budget{large: account{limit: limit}, small: account{limit: max(limit/4, minSmallLimit)}}
}

// Recycle is the function of that name for a message that was read from a
// [Metered] connection: it also gives back what the message has taken.
func (b *Budget) Recycle(message []byte) {
	b.give(cap(message), false)
	Recycle(message)
}

// account is where a message of n bytes of memory counts.
func (b *Budget) account(n int) *account {
	if n > maxSmall {
		return &b.large
	}
	return &b.small
}

// give gives back n bytes of a message.
func (b *Budget) give(n int, suspended bool) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if suspended {
		b.account(n).suspended -= int64(n)
		return
	}
	b.account(n).used -= int64(n)
	b.dispatch()
}

// suspend moves the n bytes of a request that only waits from now on; own is
// what those of its connection hold already. It fails where there is no room.
func (b *Budget) suspend(n, own int) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.account(n)
	if own+n > ownSuspended && a.suspended > 0 && a.suspended+int64(n) > a.limit/2 {
		return false
	}
	a.suspended += int64(n)
	a.used -= int64(n)
	b.dispatch()
	return true
}

// resume is the opposite of suspend.
func (b *Budget) resume(n int) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.account(n)
	a.suspended -= int64(n)
	a.used += int64(n)
}

// dispatch lets go on who can. The lock is held.
func (b *Budget) dispatch() {
	if b.gate != nil && b.small.used < b.small.limit {
		close(b.gate)
		b.gate = nil
	}
	for len(b.queue) > 0 {
		in := b.queue[0]
		if b.large.used+in.want > b.large.limit {
			if b.first != nil || b.large.used > b.large.limit {
				return
			}
			b.first = in
		}
		b.queue = slices.Delete(b.queue, 0, 1)
		b.large.used += in.want
		close(in.granted)
	}
}

// ask takes n bytes for a large message. It returns nil, or what is closed once
// it has them.
func (b *Budget) ask(in *Intake, n int64) (granted <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	in.want = n
	if b.first == in {
		b.large.used += n
		return nil
	}
	in.granted = make(chan struct{})
	b.queue = append(b.queue, in)
	b.dispatch()
	if closed(in.granted) {
		return nil
	}
	return in.granted
}

// grown says that in holds n bytes now, for which it has what it asked for and
// what it held before.
func (b *Budget) grown(in *Intake, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.large.used += int64(n) - in.want - int64(in.held)
	in.held = n
	b.dispatch()
}

// settle ends the message of in, of which n bytes count from now on. If it waits
// for room it gives up its place.
func (b *Budget) settle(in *Intake, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.queue, in); i >= 0 {
		b.queue = slices.Delete(b.queue, i, i+1)
	} else if in.waiting { // it was granted in the meantime
		b.large.used -= in.want
	}
	if b.first == in {
		b.first = nil
	}
	b.large.used -= int64(in.held)
	b.account(n).used += int64(n)
	b.dispatch()
}

// BudgetOf is what the messages of a connection take from, nil for none.
func BudgetOf(conn Conn) *Budget {
	if m, ok := conn.(Metered); ok {
		return m.Budget()
	}
	return nil
}

// crowded tells whether nothing should be read until more has been served.
func (b *Budget) crowded() bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.small.used >= b.small.limit
}

// closedGate returns what is closed when reading may go on, nil if it may now.
func (b *Budget) closedGate() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.small.used < b.small.limit {
		return nil
	}
	if b.gate == nil {
		b.gate = make(chan struct{})
	}
	return b.gate
}
