package audit

import (
	"sync"
	"time"
)

const (
	// maxDecided is how many commands with one outcome are in the log in each decidedInterval, of
	// one session. The others are counted.
	maxDecided      = 20
	decidedInterval = 10 * time.Second
)

// decided bounds the lines about commands of a session, so that no command can fill the disk by
// being refused. Each outcome has its own share, so that refusals hide no acceptance. The zero
// value has written nothing.
type decided struct {
	mu    sync.Mutex     // guards what follows
	seen  map[string]int // by outcome, in this interval
	timer *time.Timer    // ends it; nil: none has begun
}

// Decided notes what became of a command that rules have not simply allowed.
func (s *SessionLog) Decided(outcome string, attrs ...any) {
	d := &s.decided
	d.mu.Lock()
	if d.timer == nil {
		d.seen, d.timer = map[string]int{}, time.AfterFunc(decidedInterval, func() { d.flush(s) })
	}
	d.seen[outcome]++
	shown := d.seen[outcome] <= maxDecided
	d.mu.Unlock()
	if shown {
		s.Log.Info("command decided", append(append([]any{"session", s.Name}, attrs...), "outcome", outcome)...)
	}
}

// flush ends an interval: it writes how many commands of each outcome were left out.
func (d *decided) flush(s *SessionLog) {
	d.mu.Lock()
	seen := d.seen
	if d.seen = nil; d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.mu.Unlock()
	for outcome, n := range seen {
		if n > maxDecided {
			s.Log.Info("more commands decided", "session", s.Name, "outcome", outcome, "count", n-maxDecided, "interval", decidedInterval)
		}
	}
}
