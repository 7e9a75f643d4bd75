package auth

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// renewalPause is how long nothing is renewed after a failure, unless the registry
	// answers 401. Without the pause, every request would wait for another try.
	renewalPause = 30 * time.Second
	// renewalFresh is how long a renewal counts as the answer to a 401, because the
	// request that got the 401 may be older than the renewal.
	renewalFresh = 10 * time.Second
)

// renewal keeps what a source signs requests with, and renews it for one caller at a time.
type renewal[T any] struct {
	// turn has room for one: the caller that renews. Others wait, at most until
	// their context ends.
	turn chan struct{}

	mu      sync.Mutex
	value   *T
	renewed time.Time // when value was last replaced
	failed  time.Time // when replacing it last failed
}

func newRenewal[T any](value *T) renewal[T] {
	return renewal[T]{turn: make(chan struct{}, 1), value: value}
}

func (r *renewal[T]) current() *T {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.value
}

// paused reports whether a renewal has failed moments ago.
func (r *renewal[T]) paused() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.failed.IsZero() && time.Since(r.failed) < renewalPause
}

// fresh reports whether the value was replaced moments ago.
func (r *renewal[T]) fresh() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.renewed.IsZero() && time.Since(r.renewed) < renewalFresh
}

// renew replaces old, which the caller found due or refused, by what get returns. It first
// checks whether another caller has already replaced old, because what renews a value may
// work only once. If the value was only due, and not refused, a pause is kept.
func (r *renewal[T]) renew(ctx context.Context, old *T, refused bool, get func() (*T, error)) (*T, error) {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-r.turn }()
	if value := r.current(); value != old {
		return value, nil
	}
	if !refused && r.paused() {
		return nil, fmt.Errorf("%w: the last try was moments ago", ErrTemporary)
	}
	value, err := get()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.failed = time.Now()
		return nil, err
	}
	r.value, r.renewed, r.failed = value, time.Now(), time.Time{}
	return value, nil
}
