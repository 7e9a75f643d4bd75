package fswatch

import (
	"container/list"
	"context"
	"sync"
	"time"
)

// Kind says what happened to a path.
type Kind uint8

// The kinds.
const (
	// Created: the path leads to a new object; the old object and everything below
	// it, if any, is gone.
	Created Kind = iota
	// Modified: the content, mode, owner or times have changed.
	Modified
	// Removed: the path and everything below it no longer exist.
	Removed
	// Renamed: the object at From, with everything below it, is now at the path. The
	// old object at the path is gone.
	Renamed
)

// Change is something that happened to a path.
type Change struct {
	Path string
	Kind Kind
	From string // with Renamed
	// Directory says that a directory is or was at the path.
	Directory bool
}

// Batch is changes in the order of their events; a repeated change is in it once.
type Batch struct {
	Changes []Change
	// Overflow says that more has changed: anything at or below the root may have.
	Overflow bool
}

// Bounds of the changes not taken yet, and of one batch.
const (
	maxChanges      = 4096
	maxChangeBytes  = 1 << 20 // of paths
	maxBatch        = 512
	maxBatchBytes   = 64 << 10 // of paths, and one change beyond
	changeAllowance = 32       // counts for a change in addition to its paths
)

// window is how long changes are collected after the first one.
const window = 75 * time.Millisecond

// changes are the changes not taken yet. Entries keep the order of events, so that a reader that
// applies them one after the other ends with the current files. A new entry replaces an older one
// of the same path only if nothing between them depends on the older one. All methods may run at
// once.
type changes struct {
	mu   sync.Mutex // guards what follows
	list list.List  // of *Change
	// last has the newest entry of a path, as long as later events may be merged with it.
	last     map[string]*list.Element
	bytes    int
	overflow bool
	blind    bool      // every batch reports an overflow
	since    time.Time // when the first of them came; zero when there is nothing
	wake     chan struct{}
}

func newChanges() *changes {
	return &changes{last: map[string]*list.Element{}, wake: make(chan struct{}, 1)}
}

// add takes a change, unless an overflow is due, because after an overflow the
// watcher looks at the files itself.
func (c *changes) add(change Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.overflow {
		return
	}
	old := c.last[change.Path]
	switch change.Kind {
	case Modified:
		if old != nil && old.Value.(*Change).Kind != Removed {
			return // the earlier change of the path already makes the reader look at it
		}
	case Renamed:
		delete(c.last, change.From)
		if change.Directory {
			// Changes of names below either path mean other objects from now on.
			clear(c.last)
		}
	}
	// A renamed entry stays, because it also says that its From is gone.
	if old != nil && old.Value.(*Change).Kind != Renamed {
		c.dropLocked(old)
	}
	c.last[change.Path] = c.list.PushBack(&change)
	c.bytes += size(&change)
	if c.list.Len() > maxChanges || c.bytes > maxChangeBytes {
		c.overflowLocked()
		return
	}
	c.signalLocked()
}

func size(c *Change) int { return len(c.Path) + len(c.From) + changeAllowance }

func (c *changes) dropLocked(e *list.Element) {
	c.bytes -= size(e.Value.(*Change))
	c.list.Remove(e)
}

// lose replaces all changes not taken yet by an overflow.
func (c *changes) lose() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.overflowLocked()
}

func (c *changes) overflowLocked() {
	c.list.Init()
	clear(c.last)
	c.bytes, c.overflow = 0, true
	c.signalLocked()
}

// setBlind sets whether every batch must report an overflow. If so, one is reported at once.
func (c *changes) setBlind(blind bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if blind && !c.blind {
		c.overflowLocked()
	}
	c.blind = blind
}

// signalLocked makes wait look again.
func (c *changes) signalLocked() {
	if c.since.IsZero() {
		c.since = time.Now()
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// wait returns when there is something to take, at the end of its window.
func (c *changes) wait(ctx context.Context) error {
	for {
		c.mu.Lock()
		since := c.since
		c.mu.Unlock()
		if since.IsZero() {
			select {
			case <-c.wake:
				continue
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		left := window - time.Since(since)
		if left <= 0 {
			return nil
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}

// take returns what there is, up to the bounds of a batch.
func (c *changes) take() Batch {
	c.mu.Lock()
	defer c.mu.Unlock()
	batch := Batch{Overflow: c.overflow || c.blind && c.list.Len() > 0}
	for bytes := 0; c.list.Len() > 0 && len(batch.Changes) < maxBatch && bytes < maxBatchBytes; {
		front := c.list.Front()
		change := front.Value.(*Change)
		if c.last[change.Path] == front {
			delete(c.last, change.Path)
		}
		c.dropLocked(front)
		bytes += size(change)
		batch.Changes = append(batch.Changes, *change)
	}
	c.overflow = false
	if c.list.Len() == 0 {
		c.since = time.Time{}
	}
	return batch
}
