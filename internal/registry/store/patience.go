package store

import (
	"context"
	"errors"
	"time"
)

// retry is the pause before a store that did not answer is asked again.
const retry = 250 * time.Millisecond

// Pause waits for 250 ms before the store is asked again. It returns false if ctx has
// ended.
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

// Persist calls ask again, after a Pause, while ask returns an error that wraps
// ErrUnavailable, until ctx ends. It returns the last error of ask. Persist is needed because
// a store that is busy or elects a leader does not answer for some seconds.
func Persist(ctx context.Context, ask func() error) error {
	for {
		err := ask()
		if !errors.Is(err, ErrUnavailable) || !Pause(ctx) {
			return err
		}
	}
}
