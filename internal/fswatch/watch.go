package fswatch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/inotify"
	"github.com/execagent/execagent/internal/share"
)

// Bounds of directories. A larger tree is watched up to the bounds, and every batch
// reports an overflow.
const (
	maxDirs      = 16384 // of one watch
	maxTotalDirs = 65536 // of all watches of a Watcher, with those above their roots
	maxDepth     = 64    // below the root, as in fs/walk
	maxAbove     = 256   // names in the path of the root; a longer path is refused
)

// pairing is how long the first half of a rename waits for the other one. The kernel
// reports both within microseconds, unless it runs another process in between.
const pairing = 10 * time.Millisecond

// pause is how long a watch that has lost events waits before it looks at the whole tree
// again, so that a flood of events does not keep it busy.
const pause = 200 * time.Millisecond

// ErrLimit says that no more directories are watched: for this agent, or for its user.
var ErrLimit = errors.New("no more directories can be watched: a limit of this agent, or of the host" +
	" (fs.inotify.max_user_watches, max_user_instances)")

// ErrNotOrdinary refuses a root on a file system of the kernel.
var ErrNotOrdinary = errors.New("a file system of the kernel is not watched")

// Watcher makes watches, all on one inotify instance. Its methods may run at once.
type Watcher struct {
	// Group is the instance. It is closed after all watches.
	Group *inotify.Group

	// Dirs are the directories that all watches may have.
	Dirs *share.Pool
}

// NewWatcher returns a Watcher on an instance. It watches half of what the host lets the user watch
// (fs.inotify.max_user_watches) at most, because other programs of the user need some too.
func NewWatcher(g *inotify.Group) *Watcher {
	most := int64(maxTotalDirs)
	if text, err := os.ReadFile("/proc/sys/fs/inotify/max_user_watches"); err == nil {
		if host, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
			most = min(most, host/2)
		}
	}
	return &Watcher{Group: g, Dirs: &share.Pool{What: "watched directories", Max: most}}
}

// Options configure a watch.
type Options struct {
	// Root is a directory, another file, or missing: absolute, clean and without links.
	Root string
	// Recursive watches all directories below, not just the names in the root.
	Recursive bool
	// Shown reports whether the watcher may know about path and its changes. Other
	// paths are neither reported nor entered. It is called from one goroutine at a
	// time; nil shows everything.
	Shown func(path string, directory bool) bool
	// Owner has a share of the directories that the Watcher may watch.
	Owner string
}

// above returns the number of directories above the root, which are watched too.
func (o *Options) above() int64 { return int64(strings.Count(o.Root, "/")) }

// Watch is one watch. Wait and Take are for one goroutine; all other methods may run at
// any time.
type Watch struct {
	cancel context.CancelFunc
	done   chan struct{}

	*tree // except its queue and changes, owned by the goroutine of run, or its starter
}

// Watch starts a watch. It reports changes after Watch has returned. The context bounds
// how long the caller waits, not the watch, which the caller closes. The error is the
// error of opening the root for reading, ErrLimit or ErrNotOrdinary.
func (w *Watcher) Watch(ctx context.Context, o Options) (*Watch, error) {
	watch := &Watch{done: make(chan struct{}), tree: &tree{
		watcher: w, options: o, judged: o.Shown != nil, queue: newQueue(), changes: newChanges(), dirs: map[int32]*node{},
	}}
	if !watch.judged {
		watch.options.Shown = func(string, bool) bool { return true }
	}
	err := error(unix.ENAMETOOLONG)
	if o.above() <= maxAbove {
		err = w.Dirs.Take(o.Owner, o.above())
	}
	if err != nil {
		return nil, fmt.Errorf("watch %q: %w", o.Root, err)
	}
	if err = watch.find(ctx, false); err == nil {
		err = ctx.Err()
	}
	if err != nil {
		watch.end()
		return nil, fmt.Errorf("watch %q: %w", o.Root, err)
	}
	life, cancel := context.WithCancel(context.Background())
	watch.cancel = cancel
	go watch.run(life)
	return watch, nil
}

// Wait returns as soon as there is something to take. It waits a moment after the
// first change, so that related changes come together.
func (w *Watch) Wait(ctx context.Context) error { return w.changes.wait(ctx) }

// Take returns the changes not taken yet, or a part of them: after a full batch,
// Wait returns at once.
func (w *Watch) Take() Batch { return w.changes.take() }

// Close ends the watch and waits for its goroutine. It may be called more than once.
func (w *Watch) Close() {
	w.cancel()
	<-w.done
}

// run takes events until the watch is closed.
func (w *Watch) run(ctx context.Context) {
	defer close(w.done)
	defer w.end()
	again := time.NewTimer(0)
	defer again.Stop()
	var waiting []queued
	for {
		select {
		case <-w.queue.wake:
		case <-again.C:
		case <-ctx.Done():
			return
		}
		events, lost := w.queue.take()
		if !lost {
			waiting = w.apply(ctx, append(waiting, events...))
		}
		if lost || w.broken {
			waiting = nil
			if !w.renew(ctx) {
				return
			}
		}
		if len(waiting) > 0 {
			again.Reset(pairing)
		}
	}
}

// end gives back everything that the watch has.
func (w *Watch) end() {
	w.forgetAll()
	w.watcher.Dirs.Give(w.options.Owner, w.options.above())
}

// renew rebuilds the tree after events were lost, and then reports the overflow. It
// returns false if the watch is closed.
func (w *Watch) renew(ctx context.Context) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return false
	}
	w.forgetAll()
	w.queue.take() // none of these events is about the new tree
	w.blind, w.broken = false, false
	if err := w.find(ctx, false); err != nil {
		w.blind = true
	}
	w.changes.setBlind(w.blind)
	w.changes.lose()
	return ctx.Err() == nil
}
