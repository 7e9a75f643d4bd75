package store

import (
	"context"
	"errors"
	"time"
)

// retry is how long a store that does not answer is left alone.
const retry = 250 * time.Millisecond

// Pause waits before the store is asked again, and reports false if ctx has ended.
func Pause(ctx context.Context) bool {
	timer := time.NewTimer(retry)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// Persist repeats ask while the store does not answer in time, as one that is busy or
// elects a leader, until ctx ends.
func Persist(ctx context.Context, ask func() error) error {
	for {
		err := ask()
		if !errors.Is(err, ErrUnavailable) || !Pause(ctx) {
			return err
		}
	}
}
