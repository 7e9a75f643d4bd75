package sockets

import (
	"sync"
	"sync/atomic"
)

const (
	// DefaultBudget is what all sockets of an agent keep together, in bytes.
	DefaultBudget = 64 << 20
	// pieceSize is how much of that is taken at a time, and how much is told at once.
	pieceSize = 64 << 10
	// maxOpen is how many sockets of all sets that share a [Budget] are open at
	// once: each takes a descriptor, and may keep 8 KiB whatever
	// others do.
	maxOpen = 2048
)

// Budget bounds what the sockets of several sets keep, and how many there are.
type Budget struct {
	Max int64 // bytes

	used atomic.Int64
	mu   sync.Mutex
	open int
}

// take takes n bytes, or nothing.
func (b *Budget) take(n int64) bool {
	if b.used.Add(n) <= b.Max {
		return true
	}
	b.used.Add(-n)
	return false
}

func (b *Budget) give(n int64) { b.used.Add(-n) }

// enter counts one more socket, if there may be one.
func (b *Budget) enter() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == maxOpen {
		return false
	}
	b.open++
	return true
}

// Open returns how many sockets are open or being connected.
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
