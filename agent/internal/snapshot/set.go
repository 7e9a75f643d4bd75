package snapshot

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/execagent/execagent/internal/share"
)

const (
	// maxStates is the number of states of a session. The least recently used state is dropped.
	maxStates = 16
	// maxTries is the number of attempts for a capture that fails, and pause is the shortest time
	// between two attempts.
	maxTries = 3
	pause    = time.Second
	// maxTime is the time limit of a capture.
	maxTime = 10 * time.Second
)

// maxBytes bounds the memory of all states that share a Budget.
const maxBytes = 64 << 20

// NewBudget returns a bound for the memory of the states of all sessions.
func NewBudget() *share.Pool { return &share.Pool{What: "bytes for shell snapshots", Max: maxBytes} }

// A Set has the states of one session. All methods may be called concurrently.
type Set struct {
	// Budget bounds the memory of this set and of others. Owner has a share of it.
	Budget *share.Pool
	Owner  string
	// Time is the time limit of a capture. If it is zero, the limit is 10 s.
	Time time.Duration

	mu      sync.Mutex // guards the fields below
	closed  bool
	stop    context.CancelFunc
	ctx     context.Context // context of captures; ends with the set
	entries []*cachedState  // the most recently used is at the end

	capturing sync.WaitGroup
}

// cachedState is one state, or the failed attempts to capture it.
type cachedState struct {
	key    string
	state  *State
	tries  int // number of failed attempts
	failed time.Time
	under  chan struct{} // closed when the running capture ends; nil: no capture runs
}

// Get returns the state of a key. If there is none, capture makes it for all callers that ask
// meanwhile, even if ctx of the first caller ends. The context of capture ends with the set, and
// after Time. A nil state means that there is none, or none yet. wait is called before Get waits;
// if wait fails, Get returns nil instead of waiting.
func (s *Set) Get(ctx context.Context, key string, wait func() error, capture func(context.Context) (*State, error)) (*State, error) {
	e, under := s.begin(key, capture)
	if under == nil {
		return e, nil
	}
	if wait() != nil {
		return nil, nil
	}
	select {
	case <-under:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.indexLocked(key); i >= 0 {
		return s.entries[i].state, nil
	}
	return nil, nil
}

// begin returns the state if there is one. Otherwise it returns a channel that is closed when a
// capture has ended, or nil if no capture runs.
func (s *Set) begin(key string, capture func(context.Context) (*State, error)) (*State, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil
	}
	e := s.entryLocked(key)
	switch {
	case e.state != nil:
		return e.state, nil
	case e.under != nil:
		return nil, e.under
	case e.tries == maxTries || e.tries > 0 && time.Since(e.failed) < pause:
		return nil, nil
	}
	if s.ctx == nil {
		s.ctx, s.stop = context.WithCancel(context.Background())
	}
	ctx, cancel := context.WithTimeout(s.ctx, cmp.Or(s.Time, maxTime))
	under := make(chan struct{})
	e.under = under
	s.capturing.Go(func() {
		defer cancel()
		state, err := capture(ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		if err == nil {
			err = s.keepLocked(e, state)
		}
		if e.under = nil; err != nil {
			e.tries++
			e.failed = time.Now()
		}
		close(under)
	})
	return nil, under
}

// keepLocked stores the state in an entry if the set still has the entry.
func (s *Set) keepLocked(e *cachedState, state *State) error {
	if s.closed || !slices.Contains(s.entries, e) {
		return nil
	}
	err := s.Budget.Take(s.Owner, state.size())
	if err == nil {
		e.state = state
	}
	return err
}

// give gives back the memory of a state that is dropped; nil: there is none.
func (s *Set) give(state *State) {
	if state != nil {
		s.Budget.Give(s.Owner, state.size())
	}
}

func (s *Set) indexLocked(key string) int {
	return slices.IndexFunc(s.entries, func(e *cachedState) bool { return e.key == key })
}

// entryLocked returns the entry of a key, and marks it as most recently used. It makes the entry if
// there is none.
func (s *Set) entryLocked(key string) *cachedState {
	e := &cachedState{key: key}
	if i := s.indexLocked(key); i >= 0 {
		e = s.entries[i]
		s.entries = slices.Delete(s.entries, i, i+1)
	}
	if len(s.entries) == maxStates {
		s.give(s.entries[0].state)
		s.entries = slices.Delete(s.entries, 0, 1)
	}
	s.entries = append(s.entries, e)
	return e
}

// Close ends running captures and waits for them. After Close nothing is captured.
func (s *Set) Close() {
	s.mu.Lock()
	s.closed = true
	if s.stop != nil {
		s.stop()
	}
	for _, e := range s.entries {
		s.give(e.state)
	}
	s.entries = nil
	s.mu.Unlock()
	s.capturing.Wait()
}
