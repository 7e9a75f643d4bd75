package relay

import (
	"context"
	"math/rand/v2"
	"net/url"
	"strconv"
	"time"
)

const (
	// maxURLLife is the longest life of a rendezvous URL. A larger value is not a time in
	// seconds.
	maxURLLife = 365 * 24 * time.Hour
	// mostRenewalDelay bounds the pause after a failed renewal.
	mostRenewalDelay = 5 * time.Minute
	// The pauses while the registry refuses the executor's credential; they double. A new
	// credential may come at any time, and until the registry accepts it, no harness can connect.
	firstUnwelcomeDelay, mostUnwelcomeDelay = time.Second, 30 * time.Second
)

// life returns how long the URL of the registration is still valid, if the URL says so, as
// URLs of our registry do (remote.md 3.1).
func (r *registration) life() (time.Duration, bool) {
	u, err := url.Parse(r.URL)
	if err != nil {
		return 0, false
	}
	seconds, err := strconv.ParseInt(u.Query().Get("expiry"), 10, 64)
	if err != nil {
		return 0, false
	}
	life := time.Until(time.Unix(seconds, 0))
	return life, 0 < life && life < maxURLLife
}

// renew registers again and again while a websocket is up, each time about half of the life of its
// URL has passed. So the next websocket does not need the registry at that moment. A failed renewal
// is repeated; a refusal by the registry counts only at the next websocket. If the registry refused
// the executor's credential, for example in a question about a harness, renew registers at once,
// and again until the credential is accepted.
func (l *Link) renew(ctx context.Context) {
	for {
		life, ok := l.registered.Load().life()
		if !ok {
			return
		}
		// Executors that came together do not register together.
		delay := life/2 - rand.N(life/10+1)
		pause := firstUnwelcomeDelay
		early := l.unwelcome
		for {
			timer := time.NewTimer(delay)
			select {
			case <-timer.C:
			case <-early:
			case <-ctx.Done():
			}
			timer.Stop()
			if ctx.Err() != nil {
				return
			}
			registration, err := l.cfg.Registry.registerOnce(ctx, l.cfg.Identity.PublicKey())
			if err == nil {
				l.log.Debug("registration renewed", "registration", label([]byte(registration.ID)))
				l.registered.Store(registration)
				break
			}
			if ctx.Err() != nil {
				return
			}
			delay = min(life/20, mostRenewalDelay)
			if early = l.unwelcome; l.Refused() {
				delay, pause = min(delay, pause), min(2*pause, mostUnwelcomeDelay)
				early = nil // otherwise each new client would ask the registry again
			}
			l.log.Warn("registration not renewed", "error", err, "delay", delay)
		}
	}
}
