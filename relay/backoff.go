package relay

import (
	"context"
	"math/rand/v2"
	"time"
)

// The pace of attempts to connect (remote.md 3.5).
const (
	defaultLeastDelay = 100 * time.Millisecond
	defaultMostDelay  = 30 * time.Second
	// defaultUrgentDelay is the most while a stream waits, which has 30 s before it
	// ends, and for so long (recent) after a websocket was opened: one that drops
	// every few seconds must not be away for longer and longer.
	defaultUrgentDelay = 5 * time.Second
	recent             = 60 * time.Second
	// defaultSteady is how long a websocket has to be up for the pace to start
	// over.
	defaultSteady = 30 * time.Second
)

// backoff paces attempts to open a websocket: the first is immediate, before
// each further one stands a random part of a limit that doubles, so that a
// thousand executors whose rendezvous restarts do not come back at one moment.
type backoff struct {
	timing   timing
	attempts int
	opened   time.Time // the last websocket; zero: none
	up       bool      // and it has not ended yet
}

// connected notes that a websocket was opened.
func (b *backoff) connected() { b.opened, b.up = time.Now(), true }

// next is the pause before the next attempt, after one failed or a websocket
// ended. The time that the websocket was up is taken off. waiting: a stream waits
// for it.
func (b *backoff) next(waiting bool) time.Duration {
	sinceOpened := time.Since(b.opened)
	var waited time.Duration
	if b.up {
		b.up, waited = false, sinceOpened
		if waited >= orDefault(b.timing.steady, defaultSteady) {
			b.attempts = 0
		}
	}
	b.attempts++
	if b.attempts == 1 {
		return 0
	}
	limit, most := orDefault(b.timing.least, defaultLeastDelay), orDefault(b.timing.most, defaultMostDelay)
	if waiting || !b.opened.IsZero() && sinceOpened < recent {
		most = min(most, orDefault(b.timing.urgent, defaultUrgentDelay))
	}
	for range b.attempts - 2 {
		if limit >= most {
			break
		}
		limit *= 2
	}
	return max(0, rand.N(min(limit, most)+1)-waited)
}

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
