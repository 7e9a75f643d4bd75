package snapshot

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxStates is how many states a session has; who was not used for longest goes.
	maxStates = 16
	// maxTries is how often a capture is tried that fails, and pause what has to pass
	// before the next try.
	maxTries = 3
	pause    = time.Second
	// maxTime is how long a capture may take.
	maxTime = 10 * time.Second
)

// maxBytes is what the states of all sets of a Budget may have together.
const maxBytes = 64 << 20

// Budget bounds the memory of the states of all sessions. The zero value is ready for use.
type Budget struct{ used atomic.Int64 }

var errBudget = errors.New("no memory for one more state")

func (b *Budget) take(s *State) error {
	if b.used.Add(s.size()) > maxBytes {
		b.give(s)
		return errBudget
	}
	return nil
}

func (b *Budget) give(s *State) {
	if s != nil {
		b.used.Add(-s.size())
	}
}

// Set is the states of one session. All methods may be called at once.
type Set struct {
	// Budget bounds the set, together with others.
	Budget *Budget
	// Time is how long a capture may take. If zero, 10 s.
	Time time.Duration

	mu      sync.Mutex // guards what follows
	closed  bool
	stop    context.CancelFunc
	ctx     context.Context // of captures; ends with the set
	entries []*cachedState  // used last: at the end

	capturing sync.WaitGroup
}

// cachedState is one state, or why there is none.
type cachedState struct {
	key    string
	state  *State
	tries  int // that have failed
	failed time.Time
	under  chan struct{} // closed when the capture that is under way is over; nil: none is
}

// Get returns the state of a key. Where there is none, capture makes it, for all who ask
// meanwhile, even if ctx ends for the one who asked first. The context of capture ends with the
// set, and after its Time. nil: there is none to be had, or not now. wait is called before Get
// waits; where it fails, Get does not wait.
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

// begin returns the state that there is, or what is closed when it may be there.
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

// keepLocked gives an entry its state, if the set still has the entry.
func (s *Set) keepLocked(e *cachedState, state *State) error {
	if s.closed || !slices.Contains(s.entries, e) {
		return nil
	}
	err := s.Budget.take(state)
	if err == nil {
		e.state = state
	}
	return err
}

func (s *Set) indexLocked(key string) int {
	return slices.IndexFunc(s.entries, func(e *cachedState) bool { return e.key == key })
}

// entryLocked returns the entry of a key as the one that was used last.
func (s *Set) entryLocked(key string) *cachedState {
	e := &cachedState{key: key}
	if i := s.indexLocked(key); i >= 0 {
		e = s.entries[i]
		s.entries = slices.Delete(s.entries, i, i+1)
	}
	if len(s.entries) == maxStates {
		s.Budget.give(s.entries[0].state)
		s.entries = slices.Delete(s.entries, 0, 1)
	}
	s.entries = append(s.entries, e)
	return e
}

// Close ends captures that are under way and waits for them. Nothing is captured any more.
func (s *Set) Close() {
	s.mu.Lock()
	s.closed = true
	if s.stop != nil {
		s.stop()
	}
	for _, e := range s.entries {
		s.Budget.give(e.state)
	}
	s.entries = nil
	s.mu.Unlock()
	s.capturing.Wait()
}
