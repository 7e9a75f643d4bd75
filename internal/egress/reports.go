package egress

import (
	"slices"
	"sync"

	"github.com/execagent/execagent/protocol"
)

// maxReports is how many verdicts may wait for the client of a session. A report is at most a few
// KiB, because hosts and reasons are bounded.
const maxReports = 256

// Reports tells the client of a session about verdicts, in order, without blocking the sources of
// verdicts. Verdicts while no client is attached go to the next client; a verdict that repeats a
// waiting one replaces it. If too many wait, the oldest are lost.
type Reports struct {
	// Tell tells the attached client, and returns false if there is none, or it is lost. It
	// may block while the client does not read.
	Tell func(*protocol.PolicyDecision) bool

	mu      sync.Mutex // guards what follows
	waiting []protocol.PolicyDecision
	away    bool // no client was attached when the first of them was due
	resumed int  // how often a client came
	telling bool // a goroutine is telling
	closed  bool
	idle    sync.Cond
}

// add notes a verdict. It does not block.
func (r *Reports) add(d protocol.PolicyDecision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	if r.away || len(r.waiting) >= maxReports {
		if i := slices.IndexFunc(r.waiting, func(w protocol.PolicyDecision) bool { return repeats(w, d) }); i >= 0 {
			r.waiting = slices.Delete(r.waiting, i, i+1)
		}
	}
	if len(r.waiting) >= maxReports {
		r.waiting = slices.Delete(r.waiting, 0, 1)
	}
	r.waiting = append(r.waiting, d)
	if !r.away {
		r.tellLocked()
	}
}

// repeats reports whether two verdicts say the same about two attempts.
func repeats(a, b protocol.PolicyDecision) bool {
	a.Timestamp, a.Client = b.Timestamp, b.Client
	return a == b
}

// Resume reports waiting verdicts, because a client is attached.
func (r *Reports) Resume() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.away = false
	r.resumed++
	r.tellLocked()
}

// Flush returns when all verdicts so far have been reported, or no client is attached.
func (r *Reports) Flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.awaitLocked()
}

// Close drops unreported verdicts, and returns when no report is under way.
func (r *Reports) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed, r.waiting = true, nil
	r.awaitLocked()
}

func (r *Reports) awaitLocked() {
	r.idle.L = &r.mu
	for r.telling {
		r.idle.Wait()
	}
}

func (r *Reports) tellLocked() {
	if r.telling || len(r.waiting) == 0 {
		return
	}
	r.telling, r.idle.L = true, &r.mu
	go r.tell()
}

// tell runs until no verdict waits, or no client is attached.
func (r *Reports) tell() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.waiting) > 0 && !r.away {
		next := r.waiting[0]
		resumed := r.resumed
		r.waiting = slices.Delete(r.waiting, 0, 1)
		r.mu.Unlock()
		told := r.Tell(&next)
		r.mu.Lock()
		if !told && !r.closed {
			// A client may have come in the meantime, and get this verdict next.
			r.waiting, r.away = slices.Insert(r.waiting, 0, next), r.resumed == resumed
		}
	}
	r.telling = false
	r.idle.Broadcast()
}
