package socket

import "sync/atomic"

// Budget bounds the total memory of the messages of many sockets. Its methods may be
// called concurrently.
type Budget struct {
	limit  int64
	parent *Budget
	used   atomic.Int64
	alarm  chan struct{} // has a value after alarmAt was reached; nil: no alarm
	// alarmAt is in bytes.
	alarmAt int64
}

// NewBudget returns a budget of limit bytes. Bytes that are taken from it are taken from
// its parent too. parent may be nil.
func NewBudget(limit int64, parent *Budget) *Budget { return &Budget{limit: limit, parent: parent} }

// Take takes n bytes, even beyond the limit, because callers check Spent before.
func (b *Budget) Take(n int) {
	for ; b != nil; b = b.parent {
		if used := b.used.Add(int64(n)); b.alarm != nil && n > 0 && used >= b.alarmAt {
			select {
			case b.alarm <- struct{}{}:
			default: // the receiver has not taken the last value yet
			}
		}
	}
}

// Alarm returns a channel that has a value after at bytes or more are taken. It must be
// called once, before anything is taken.
func (b *Budget) Alarm(at int64) <-chan struct{} {
	b.alarm, b.alarmAt = make(chan struct{}, 1), at
	return b.alarm
}

// Limit returns the limit, in bytes.
func (b *Budget) Limit() int64 { return b.limit }

// rootSpent reports whether nothing is left of the topmost parent of b.
func (b *Budget) rootSpent() bool {
	if b == nil {
		return false
	}
	for b.parent != nil {
		b = b.parent
	}
	return b.used.Load() >= b.limit
}

// Give gives n bytes back.
func (b *Budget) Give(n int) { b.Take(-n) }

// Used returns the number of bytes that are taken.
func (b *Budget) Used() int { return int(b.used.Load()) }

// Spent reports whether nothing is left of b or of a parent. A nil Budget is
// never spent.
func (b *Budget) Spent() bool {
	for ; b != nil; b = b.parent {
		if b.used.Load() >= b.limit {
			return true
		}
	}
	return false
}
