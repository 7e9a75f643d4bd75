package procs

import (
	"cmp"
	"container/list"
	"sync"

	"github.com/execagent/execagent/internal/share"
)

// defaultBudget is the output kept for all processes together, in bytes (rpc.md
// 4.8).
const defaultBudget = 256 << 20

// Budget bounds the output kept for all processes that share it. When it is
// exceeded, the owner whose processes hold the most loses output: first of
// processes that have closed, in the order in which they closed; then, if a
// process of this owner is writing, its own oldest output, else the oldest
// output of the process that began to write first. All processes have one owner
// unless their budgets come from [Budget.For]. The zero value is ready for use.
type Budget struct {
	// Max is the bound in bytes of memory; zero: 256 MiB.
	Max int64

	owner string
	whole *Budget // that this is a part of; nil: none

	held   share.Pool
	mu     sync.Mutex // guards what follows
	owners map[string]*ownLogs
}

// ownLogs are the logs of one owner that hold output.
type ownLogs struct {
	open  list.List // of *log; the one that began to write first comes first
	ended list.List // of *log; the one that closed first comes first
}

// For returns the part of the budget that belongs to an owner. All parts together have
// the bound of the budget.
func (b *Budget) For(owner string) *Budget { return &Budget{owner: owner, whole: b} }

// Used returns the memory of the output kept now, in bytes.
func (b *Budget) Used() int64 { return b.all().held.Used() }

func (b *Budget) all() *Budget { return cmp.Or(b.whole, b) }

// charge notes that l has grown by n bytes, and makes room for them. It reports whether there is room
// now. If n is negative, l has given bytes back.
func (b *Budget) charge(l *log, n int64) (room bool) {
	if b == nil || n == 0 {
		return true
	}
	if n < 0 {
		b.all().held.Give(b.owner, -n)
		return true
	}
	all := b.all()
	all.list(l, false)
	all.held.Add(b.owner, n)
	for {
		owner, over := all.held.Over(cmp.Or(all.Max, defaultBudget))
		victim := all.victim(owner, l)
		if over <= 0 || victim == nil { // none: another goroutine makes room
			return over <= 0
		}
		freed, empty := victim.shed(over) // without the mutex: that of a log is never taken under it
		all.held.Give(owner, freed)
		if empty {
			all.unlist(victim)
		}
	}
}

// victim returns the log of an owner that loses output first; nil: none holds any. l is the log
// that writes.
func (b *Budget) victim(owner string, l *log) *log {
	b.mu.Lock()
	defer b.mu.Unlock()
	logs := b.owners[owner]
	switch {
	case logs == nil:
		return nil
	case logs.ended.Len() > 0:
		return logs.ended.Front().Value.(*log)
	case l.among == &logs.open:
		return l
	}
	return logs.open.Front().Value.(*log)
}

// end notes that l is closed: it loses its output before logs that close later.
func (b *Budget) end(l *log) {
	if b != nil {
		b.all().list(l, true)
	}
}

// forget notes that l is gone and n bytes with it.
func (b *Budget) forget(l *log, n int64) {
	if b != nil {
		b.all().held.Give(b.owner, n)
		b.all().unlist(l)
	}
}

// list notes that l holds output, and whether it is closed.
func (b *Budget) list(l *log, ended bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l.among != nil && !ended {
		return
	}
	b.unlistLocked(l)
	logs := b.owners[l.budget.owner]
	if logs == nil {
		logs = new(ownLogs)
		if b.owners == nil {
			b.owners = map[string]*ownLogs{}
		}
		b.owners[l.budget.owner] = logs
	}
	if l.among = &logs.open; ended {
		l.among = &logs.ended
	}
	l.place = l.among.PushBack(l)
}

// unlist notes that l holds no output.
func (b *Budget) unlist(l *log) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unlistLocked(l)
}

func (b *Budget) unlistLocked(l *log) {
	if l.among == nil {
		return
	}
	l.among.Remove(l.place)
	l.among, l.place = nil, nil
	if logs := b.owners[l.budget.owner]; logs.open.Len()+logs.ended.Len() == 0 {
		delete(b.owners, l.budget.owner)
	}
}
