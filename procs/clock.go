package procs

import (
	"syscall"
	"time"
)

// termGrace is how long a process whose time is up may go on after SIGTERM, before it is killed.
const termGrace = 2 * time.Second

// The outcomes of a process with a time limit.
const (
	undecided = iota
	inTime    // the leader has exited before its time was up
	tooLate   // the time was up first
)

// StartClock starts the time of [Spec.Timeout]. Only the first call has an effect.
func (p *Process) StartClock() { p.clockOnce.Do(func() { close(p.clock) }) }

// limitTime ends the process, and what it has left behind, when its time is up: with SIGTERM first, and
// after termGrace as KillGroup does. expired is called after that, if it is not nil.
func (p *Process) limitTime(limit time.Duration, expired func()) {
	select {
	case <-p.clock:
	case <-p.done:
		return
	case <-p.ending:
		return
	}
	if p.endsWithin(limit) {
		return
	}
	p.outcome.CompareAndSwap(undecided, tooLate)
	p.Signal(syscall.SIGTERM)
	p.endsWithin(termGrace)
	p.KillGroup()
	if expired != nil {
		expired()
	}
}

// endsWithin waits for the end of the process and of what it has left behind, and reports whether it came
// within d. Nothing tells when what a process has left behind ends, so then it waits for all of d.
func (p *Process) endsWithin(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for done := p.done; ; done = nil {
		select {
		case <-timer.C:
			return done == nil && !p.leaves()
		case <-p.ending:
			return true
		case <-done:
			if !p.leaves() {
				return true
			}
		}
	}
}

// leaves reports whether a process that has ended may have left others behind, in its group, session or
// control group.
func (p *Process) leaves() bool { return p.group.left() || p.cgroup != nil }
