package sockets

import (
	"sync"
	"sync/atomic"
)

const (
	// DefaultBudget bounds the bytes that all sockets of an agent keep together.
	DefaultBudget = 64 << 20
	// pieceSize is the number of bytes that is taken from the budget at a time. It also bounds the
	// bytes of one Data.
	pieceSize = 64 << 10
	// maxOpen bounds the sockets of all sets that share a [Budget], because each socket takes a
	// descriptor, and may keep 8 KiB even if the budget is used up.
	maxOpen = 2048
)

// A Budget bounds the bytes that the sockets of several sets keep, and the number of these sockets.
type Budget struct {
	Max int64 // bytes

	used atomic.Int64
	mu   sync.Mutex
	open int
}

// take takes n bytes, or none. It reports whether it took them.
func (b *Budget) take(n int64) bool {
	if b.used.Add(n) <= b.Max {
		return true
	}
	b.used.Add(-n)
	return false
}

func (b *Budget) give(n int64) { b.used.Add(-n) }

// enter counts one more socket. It reports whether one more was allowed.
func (b *Budget) enter() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == maxOpen {
		return false
	}
	b.open++
	return true
}

// Open returns the number of sockets that are open or being connected.
func (b *Budget) Open() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

func (b *Budget) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open--
}
