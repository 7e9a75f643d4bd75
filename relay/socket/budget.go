package socket

import "sync/atomic"

// Budget bounds the memory of what waits in the lanes of many sockets together.
// Its methods may be called at once.
type Budget struct {
	limit  int64
	parent *Budget
	used   atomic.Int64
}

// NewBudget returns one of so many bytes. What is taken of it is taken of the
// parent as well, which may be nil.
func NewBudget(limit int64, parent *Budget) *Budget { return &Budget{limit: limit, parent: parent} }

// Take takes n bytes, also beyond the limit: those who take look at Spent before.
func (b *Budget) Take(n int) {
	for ; b != nil; b = b.parent {
		b.used.Add(int64(n))
	}
}

// Give gives n bytes back.
func (b *Budget) Give(n int) { b.Take(-n) }

// Used is how many bytes are taken.
func (b *Budget) Used() int { return int(b.used.Load()) }

// Spent tells whether there is nothing left, here or of a parent. A nil Budget has
// no end.
func (b *Budget) Spent() bool {
	for ; b != nil; b = b.parent {
		if b.used.Load() >= b.limit {
			return true
		}
	}
	return false
}
