// Package loglines keeps lines that strangers, clients or commands cause from filling a log.
package loglines

import (
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// Max is the number of lines of one kind in each Interval. Further lines are counted.
	Max      = 20
	Interval = 10 * time.Second
	// maxKinds bounds the kinds of an interval. Further kinds count as one, "".
	maxKinds = 1024
)

// A Limit bounds lines, each kind by itself, so that lines of one kind hide none of another. Its
// methods may be called concurrently.
type Limit struct {
	// More logs how many lines of a kind were left out, at the end of an interval.
	More func(kind string, left int)

	mu    sync.Mutex     // guards the fields below
	seen  map[string]int // number of lines of this interval, by kind
	timer *time.Timer    // ends the interval; nil: none has begun
}

// Allow reports whether one more line of a kind is logged.
func (l *Limit) Allow(kind string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer == nil {
		l.seen, l.timer = map[string]int{}, time.AfterFunc(Interval, l.Flush)
	}
	if _, known := l.seen[kind]; !known && len(l.seen) >= maxKinds {
		kind = ""
	}
	l.seen[kind]++
	return l.seen[kind] <= Max
}

// Flush ends an interval.
func (l *Limit) Flush() {
	l.mu.Lock()
	seen := l.seen
	if l.seen = nil; l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	l.mu.Unlock()
	for _, kind := range slices.Sorted(maps.Keys(seen)) {
		if left := seen[kind] - Max; left > 0 {
			l.More(kind, left)
		}
	}
}

// Clip returns at most n bytes of a text that somebody else has chosen.
func Clip(text string, n int) string {
	if len(text) > n {
		return text[:n] + "..."
	}
	return text
}
