package fswatch

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/inotify"
)

// maxQueued bounds the events that the goroutine of a watch has not seen yet. It is
// half the usual bound of the kernel's own queue.
const maxQueued = 8192

// queued is a waiting event.
type queued struct {
	inotify.Event
	at   time.Time // set for the first half of a rename
	done bool      // was taken together with its other half
}

// queue has the events of one watch, until its goroutine takes them. It never
// blocks, because the reader of the agent's events calls Notice.
type queue struct {
	wake chan struct{}

	mu     sync.Mutex // guards what follows
	events []queued
	lost   bool // events were dropped, here or by the kernel
}

func newQueue() *queue { return &queue{wake: make(chan struct{}, 1)} }

// Notice takes an event of the group.
func (q *queue) Notice(e inotify.Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.lost:
		return
	case e.Mask&unix.IN_Q_OVERFLOW != 0 || len(q.events) == maxQueued:
		q.events, q.lost = nil, true
	default:
		event := queued{Event: e}
		if e.Mask&unix.IN_MOVED_FROM != 0 {
			event.at = time.Now()
		}
		q.events = append(q.events, event)
	}
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take returns the events so far, or reports that some were lost.
func (q *queue) take() (events []queued, lost bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	events, lost = q.events, q.lost
	q.events, q.lost = nil, false
	return events, lost
}
