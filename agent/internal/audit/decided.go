package audit

import (
	"sync"
	"time"
)

const (
	// maxDecided is the number of commands with one outcome that a session logs in each
	// decidedInterval. Further commands are only counted.
	maxDecided      = 20
	decidedInterval = 10 * time.Second
)

// decided bounds the log lines about commands of a session, so that a command cannot fill the disk
// by being refused again and again. Each outcome has its own limit, so that refusals do not hide
// acceptances. The zero value is ready for use.
type decided struct {
	mu    sync.Mutex     // guards the fields below
	seen  map[string]int // number of commands of this interval, by outcome
	timer *time.Timer    // ends the interval; nil: no interval has begun
}

// Decided logs the outcome for a command that rules have not simply allowed.
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

// flush ends an interval. For each outcome, it logs how many commands were left out.
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
