package rendezvous

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// TestDrain: both ends move to another server, and a stream that acknowledges
// goes on there.
func TestDrain(t *testing.T) {
	bubble(t, func(c *cluster) {
		a, b := c.server(settings{}), c.server(settings{})
		e, h, plain := a.executor(), a.harness(), a.harness()
		opened(h, e, "acknowledged", 1)
		opened(plain, e, "plain", 0)
		rig.Is(c.t, a.Draining(), false, "it drains already")
		drained := make(chan error, 1)
		started := time.Now()
		go func() { drained <- a.Drain(c.t.Context()) }()
		e.wantEnd()
		rig.Is(c.t, a.Draining(), true, "it drains")
		plain.wantEnd() // it has nothing to wait for
		e = b.executor()
		e.sendFrame(acked(resume("acknowledged"), 1))
		h.wantEnd() // later, in its turn
		rig.Is(c.t, min(time.Since(started), drainTime/3), drainTime/3, "one of three websockets was closed after, at least")
		h = b.harness()
		e.want(h.sendFrame(acked(resume("acknowledged"), 1)))
		h.arrives(e, acked(data("acknowledged", 0, "to the harness"), 1))
		exchange(h, e, "acknowledged", 1)
		rig.Must(c.t, <-drained)
		rig.Must(c.t, a.Close())
		exchange(h, e, "acknowledged", 1)
	})
}

// TestDrainTime: the closing of websockets is spread over 10 s, or most of the time that
// there is.
func TestDrainTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rig.Is(t, spread(t.Context()), drainTime, "without a deadline it is spread over")
		for has, want := range map[time.Duration]time.Duration{time.Minute: drainTime, 5 * time.Second: 4 * time.Second} {
			ctx, cancel := context.WithTimeout(t.Context(), has)
			defer cancel()
			rig.Is(t, spread(ctx), want, "with %v it is spread over", has)
		}
	})
}

// TestDrainCancelled: Drain ends with its context, and twice it has nothing to do.
func TestDrainCancelled(t *testing.T) {
	bubble(t, func(c *cluster) {
		s, empty := c.server(settings{}), c.server(settings{})
		e, h := s.executor(), s.harness()
		opened(h, e, "stream", 1)
		ctx, cancel := context.WithCancelCause(c.t.Context())
		stop := errors.New("no time")
		cancel(stop)
		rig.Is(c.t, s.Drain(ctx), stop, "Drain")
		rig.Must(c.t, s.Close())
		e.wantEnd()
		h.wantEnd()
		for range 2 {
			rig.Must(c.t, empty.Drain(c.t.Context()))
		}
	})
}
