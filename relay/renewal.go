package relay

import (
	"context"
	"math/rand/v2"
	"net/url"
	"strconv"
	"time"
)

const (
	// maxURLLife is the longest life that the URL of a rendezvous can have. What says more
	// is no time in seconds.
	maxURLLife = 365 * 24 * time.Hour
	// mostRenewalDelay bounds the pause after a renewal that has failed.
	mostRenewalDelay = 5 * time.Minute
	// The pauses while the registry refuses the executor's credential; they double. Somebody may
	// have written the next one, and until it is taken nobody reaches the executor.
	firstUnwelcomeDelay, mostUnwelcomeDelay = time.Second, 30 * time.Second
)

// life returns for how long the URL of the registration is good from now on, if it says so:
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

// renew registers again and again while a websocket is up, each time about half of the life
// of its URL has passed. So the next websocket does not need a registry that answers just
// then. A renewal that fails is repeated; what the registry thinks of the executor it says
// at the next websocket. When the registry has refused the executor's credential, as while it
// was asked about a harness, it registers at once, and again until the credential is taken.
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
				early = nil // each client that comes would ask the registry once more
			}
			l.log.Warn("registration not renewed", "error", err, "delay", delay)
		}
	}
}
