// Package share divides what a program has little of among those who use it: places, memory,
// descriptors. Whoever uses it is an owner, such as the principal of a client.
//
// One rule holds for each [Pool]: an owner gets more only if it then holds no more than what was
// free. So one owner alone can have half of a pool, the next one then a quarter, and so on. Nobody
// can take so much that nothing is left for the next one, and nobody has to give anything back.
//
// Where something can be thrown away, such as kept output, an owner alone can have all of it. If
// there is too much, the owner who holds the most loses first ([Pool.Over]).
package share

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// A Pool counts what owners hold. The zero value has nothing to give. All methods may be called
// concurrently.
type Pool struct {
	What string // in errors, in the plural: "sockets"
	Max  int64  // for all owners
	Most int64  // for one owner, whatever is free; zero: there is only the rule of the package

	mu      sync.Mutex
	used    int64
	held    map[string]int64 // by owner; nobody holds nothing
	waiting []*waiter        // those who came first are at the front
}

type waiter struct {
	owner string
	n     int64
	got   chan struct{}
}

// An Error says that an owner has its share of a pool, or that others have all of it.
type Error struct {
	What      string
	Held, Max int64
}

func (e *Error) Error() string {
	if e.Held == 0 {
		return fmt.Sprintf("no more %s: other clients of the agent have what one may have of its %d: try again later", e.What, e.Max)
	}
	return fmt.Sprintf("no more %s: you have %d, which is your share of the agent's %d: give some back", e.What, e.Held, e.Max)
}

// Take takes n for an owner, or fails with an [*Error].
func (p *Pool) Take(owner string, n int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.allowsLocked(owner, n) {
		return &Error{p.What, p.held[owner], p.Max}
	}
	p.addLocked(owner, n)
	return nil
}

// Wait takes n for an owner as soon as it may. It waits only for what its own owner gives back, or
// where all owners together hold too much. The error is that of ctx.
func (p *Pool) Wait(ctx context.Context, owner string, n int64) error {
	p.mu.Lock()
	first := !slices.ContainsFunc(p.waiting, func(w *waiter) bool { return w.owner == owner })
	if first && p.allowsLocked(owner, n) {
		p.addLocked(owner, n)
		p.mu.Unlock()
		return nil
	}
	w := &waiter{owner, n, make(chan struct{})}
	p.waiting = append(p.waiting, w)
	p.mu.Unlock()
	select {
	case <-w.got:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-w.got:
		return nil
	default:
		p.waiting = slices.DeleteFunc(p.waiting, func(other *waiter) bool { return other == w })
		p.serveLocked() // those behind it
		return context.Cause(ctx)
	}
}

// Add takes n for an owner, whatever is left. The caller then asks Over.
func (p *Pool) Add(owner string, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addLocked(owner, n)
}

// Give gives n back.
func (p *Pool) Give(owner string, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addLocked(owner, -n)
	p.serveLocked()
}

// serveLocked gives those who wait what they may have now.
func (p *Pool) serveLocked() {
	if len(p.waiting) == 0 {
		return
	}
	stuck := map[string]bool{} // no owner overtakes itself
	p.waiting = slices.DeleteFunc(p.waiting, func(w *waiter) bool {
		if stuck[w.owner] || !p.allowsLocked(w.owner, w.n) {
			stuck[w.owner] = true
			return false
		}
		p.addLocked(w.owner, w.n)
		close(w.got)
		return true
	})
}

// SetMax changes Max of a pool that is in use. It takes nothing away from anybody.
func (p *Pool) SetMax(to int64) (before int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before, p.Max = p.Max, to
	return before
}

// Used returns how much all owners hold.
func (p *Pool) Used() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}

// Over returns by how much more than limit is held, and who holds the most.
func (p *Pool) Over(limit int64) (owner string, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used <= limit {
		return "", 0
	}
	var most int64
	for name, held := range p.held {
		if held > most || held == most && name < owner {
			owner, most = name, held
		}
	}
	return owner, p.used - limit
}

func (p *Pool) allowsLocked(owner string, n int64) bool {
	then := p.held[owner] + n
	return then <= p.Max-p.used && (p.Most == 0 || then <= p.Most)
}

func (p *Pool) addLocked(owner string, n int64) {
	if p.held == nil {
		p.held = map[string]int64{}
	}
	p.used += n
	if p.held[owner] += n; p.held[owner] == 0 {
		delete(p.held, owner)
	}
}
