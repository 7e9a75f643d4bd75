package socket

import "sync/atomic"

// Budget bounds the memory of what waits in the lanes of many sockets together.
// Its methods may be called at once.
type Budget struct {
	limit  int64
	parent *Budget
	used   atomic.Int64
}

// NewBudget returns a budget of limit bytes. What is taken from it is taken from
// its parent as well; parent may be nil.
func NewBudget(limit int64, parent *Budget) *Budget { return &Budget{limit: limit, parent: parent} }

// Take takes n bytes, even beyond the limit: callers look at Spent before.
func (b *Budget) Take(n int) {
	for ; b != nil; b = b.parent {
		b.used.Add(int64(n))
	}
}

// Give gives n bytes back.
func (b *Budget) Give(n int) { b.Take(-n) }

// Used is how many bytes are taken.
func (b *Budget) Used() int { return int(b.used.Load()) }

// Spent tells whether nothing is left of b or of a parent. A nil Budget is never
// spent.
func (b *Budget) Spent() bool {
	for ; b != nil; b = b.parent {
		if b.used.Load() >= b.limit {
			return true
		}
	}
	return false
}
