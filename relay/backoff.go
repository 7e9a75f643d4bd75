package relay

import (
	"context"
	"math/rand/v2"
	"time"
)

// The pace of attempts to connect (D19).
const (
	defaultLeastDelay = 100 * time.Millisecond
	defaultMostDelay  = 30 * time.Second
)

// backoff paces attempts to connect: the first is immediate, before each
// further one stands a random part of a limit that doubles, so that a thousand
// executors whose rendezvous restarts do not come back at one moment. The zero
// value is ready to use.
type backoff struct {
	least, most time.Duration // zero: 100 ms, 30 s
	attempts    int
}

// next is how long to wait before the next attempt.
func (b *backoff) next() time.Duration {
	b.attempts++
	if b.attempts == 1 {
		return 0
	}
	limit, most := b.least, b.most
	if limit <= 0 {
		limit = defaultLeastDelay
	}
	if most <= 0 {
		most = defaultMostDelay
	}
	for range b.attempts - 2 {
		if limit >= most {
			break
		}
		limit *= 2
	}
	return rand.N(min(limit, most) + 1)
}

// reset makes the next attempt a first one.
func (b *backoff) reset() { b.attempts = 0 }

// sleep returns after d, or earlier with the error of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
