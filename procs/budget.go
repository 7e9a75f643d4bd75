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
//
// The tails of [Spec.MaxOutput] cannot be thrown away. So they have at most half
// of the budget, an owner has its share of that half (package share), and what an
// owner holds of them does not count when somebody has to lose output.
type Budget struct {
	// Max is the bound in bytes of memory; zero: 256 MiB.
	Max int64

	owner string
	whole *Budget // that this is a part of; nil: none

	held   share.Pool // what can be thrown away
	tails  share.Pool
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
func (b *Budget) Used() int64 { return b.all().held.Used() + b.all().tails.Used() }

func (b *Budget) all() *Budget { return cmp.Or(b.whole, b) }

func (b *Budget) max() int64 { return cmp.Or(b.Max, defaultBudget) }

// charge notes that l has grown by n bytes, and makes room for them. If n is negative, l has given bytes
// back.
func (b *Budget) charge(l *log, n int64) {
	if b == nil || n == 0 {
		return
	}
	all := b.all()
	if n < 0 {
		all.held.Give(b.owner, -n)
		return
	}
	all.list(l, false)
	all.held.Add(b.owner, n)
	all.makeRoom(l)
}

// hold notes that a tail has grown by n bytes, and makes room for them. It reports false, and notes nothing, if
// the owner has its share of the tails. If n is negative, the tail has given bytes back.
func (b *Budget) hold(l *log, n int64) (room bool) {
	if b == nil || n == 0 {
		return true
	}
	all := b.all()
	if n < 0 {
		all.tails.Give(b.owner, -n)
		return true
	}
	all.tails.SetMax(all.max() / 2)
	if all.tails.Take(b.owner, n) != nil {
		return false
	}
	all.makeRoom(l)
	return true
}

// makeRoom throws output away until what is kept fits. l is the log that grows.
func (b *Budget) makeRoom(l *log) {
	for {
		owner, over := b.held.Over(b.max() - b.tails.Used())
		victim := b.victim(owner, l)
		if over <= 0 || victim == nil { // none: another goroutine makes room
			return
		}
		freed, empty := victim.shed(over) // without the mutex: that of a log is never taken under it
		b.held.Give(owner, freed)
		if empty {
			b.unlist(victim)
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
