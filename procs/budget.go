package procs

import (
	"container/list"
	"sync"
)

// DefaultBudget is the output kept for all processes together, in bytes (rpc.md 4.8).
const DefaultBudget = 256 << 20

// Budget bounds the output kept for all processes that share it. When it is
// exceeded, the processes that closed longest ago lose their output first, and
// then the one that writes its own oldest. The zero value is ready for use.
type Budget struct {
	// Max is the bound in bytes of memory; zero: DefaultBudget.
	Max int64

	mu    sync.Mutex
	used  int64
	ended list.List // of *log, closed longest ago first
}

// Used is the memory that kept output takes now, in bytes.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// charge notes that l grew by n bytes and makes room for it.
func (b *Budget) charge(l *log, n int64) {
	if b == nil {
		return
	}
	limit := b.Max
	if limit == 0 {
		limit = DefaultBudget
	}
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
		b.mu.Unlock() // the lock of a log is never taken inside this one
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

// end notes that l is closed: from now on it is the first to shed.
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
