package procs

import (
	"cmp"
	"container/list"
	"sync"
)

// DefaultBudget is the output kept for all processes together, in bytes (rpc.md
// 4.8).
const DefaultBudget = 256 << 20

// Budget bounds the output kept for all processes that share it. When it is
// exceeded, processes that have closed lose their output first, in the order in
// which they closed; then the process that writes loses its own oldest output.
// The zero value is ready for use.
type Budget struct {
	// Max is the bound in bytes of memory; zero: DefaultBudget.
	Max int64

	mu    sync.Mutex
	used  int64
	ended list.List // of *log; the one that closed first comes first
}

// Used returns the memory of the output kept now, in bytes.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// charge notes that l has grown by n bytes, and makes room for them.
func (b *Budget) charge(l *log, n int64) {
	if b == nil {
		return
	}
	limit := cmp.Or(b.Max, DefaultBudget)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used += n
	for b.used > limit {
		victim := l
		oldest := b.ended.Front()
		if oldest != nil {
			victim = oldest.Value.(*log)
		}
		over := b.used - limit
		b.mu.Unlock() // the mutex of a log is never taken while this one is held
		freed, empty := victim.shed(over)
		b.mu.Lock()
		b.used -= freed
		if oldest == nil {
			return
		}
		if empty {
			b.removeLocked(victim)
		}
	}
}

// end notes that l is closed: it loses its output before logs that close later.
func (b *Budget) end(l *log) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	l.ended = b.ended.PushBack(l)
}

// forget notes that l is gone and n bytes with it.
func (b *Budget) forget(l *log, n int64) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	b.removeLocked(l)
}

func (b *Budget) removeLocked(l *log) {
	if l.ended != nil {
		b.ended.Remove(l.ended)
		l.ended = nil
	}
}
