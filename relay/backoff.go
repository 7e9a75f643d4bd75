package relay

import (
	"math/rand/v2"
	"time"
)

// The pace of attempts to connect (remote.md 3.5).
const (
	defaultLeastDelay = 100 * time.Millisecond
	defaultMostDelay  = 30 * time.Second
	// defaultUrgentDelay is the longest pause while a stream waits, because a
	// stream ends after 30 s without a websocket. It is also the longest pause
	// within recent of the last opening, so that a websocket that drops every few
	// seconds does not stay away for longer and longer.
	defaultUrgentDelay = 5 * time.Second
	recent             = 60 * time.Second
	// defaultSteady is how long a websocket must be up for the pace to start
	// over.
	defaultSteady = 30 * time.Second
)

// backoff paces attempts to open a websocket. The first is immediate; the pause
// before each further one is a random part of a limit that doubles, so that a
// thousand executors whose rendezvous restarts do not come back at one moment.
type backoff struct {
	timing   timing
	attempts int
	opened   time.Time // the last websocket; zero: none
	up       bool      // and it has not ended yet
}

// connected notes that a websocket was opened.
func (b *backoff) connected() { b.opened, b.up = time.Now(), true }

// next returns the pause before the next attempt, after an attempt failed or a
// websocket ended, minus the time that the websocket was up. waiting says that a
// stream waits for the next websocket.
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
