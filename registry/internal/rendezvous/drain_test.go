package rendezvous

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/relay/wire"
)

// TestDrain: both ends move to another server, and a stream that acknowledges
// goes on there.
func TestDrain(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a, b := c.server(settings{}), c.server(settings{})
	e, h, plain := a.executor(), a.harness(), a.harness()
	opened(h, e, "acknowledged", 1)
	opened(plain, e, "plain", 0)
	draining := func(want bool) {
		t.Helper()
		if got := a.Draining(); got != want {
			t.Errorf("draining is %v, want %v", got, want)
		}
	}
	draining(false)

	drained := make(chan error, 1)
	started := time.Now()
	go func() { drained <- a.Drain(t.Context()) }()
	e.wantEnd()
	draining(true)
	plain.wantEnd() // it has nothing to wait for
	e = b.executor()
	e.sendFrame(acked(resume("acknowledged"), 1))
	h.wantEnd() // later, in its turn: on a busy machine before the executor is back
	if took := time.Since(started); took < drainTime/3 {
		t.Errorf("one of three websockets was closed after %v", took)
	}
	h = b.harness()
	e.want(h.sendFrame(acked(resume("acknowledged"), 1)))
	down := acked(data("acknowledged", 0, "to the harness"), 1)
	h.until(down.Append(nil), sync.OnceFunc(func() { e.sendFrame(down) }))
	exchange(h, e, "acknowledged", 1)
	if err := within(t, drained); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	exchange(h, e, "acknowledged", 1)
}

// TestDrainTime: the closing of websockets is spread over 10 s, or most of the time that
// there is.
func TestDrainTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		if got := spread(t.Context()); got != drainTime {
			t.Errorf("without a deadline it is spread over %v", got)
		}
		for has, want := range map[time.Duration]time.Duration{time.Minute: drainTime, 5 * time.Second: 4 * time.Second} {
			ctx, cancel := context.WithTimeout(t.Context(), has)
			defer cancel()
			if got := spread(ctx); got != want {
				t.Errorf("with %v it is spread over %v, want %v", has, got, want)
			}
		}
	})
}

func TestDrainCancelled(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.server(settings{})
	e, h := s.executor(), s.harness()
	opened(h, e, "stream", 1)
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("no time")
	cancel(stop)
	if err := s.Drain(ctx); !errors.Is(err, stop) {
		t.Fatalf("got %v, want %v", err, stop)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	e.wantEnd()
	h.wantEnd()
}

func TestDrainNothing(t *testing.T) {
	t.Parallel()
	s := newCluster(t).server(settings{})
	for range 2 {
		if err := s.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRevoked: a revoked key's websockets end.
func TestRevoked(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.server(settings{})
	e, h := s.executor(), s.harness()
	opened(h, e, "stream", 0)
	if _, err := c.st.RevokeKey(t.Context(), c.harnessKey[len(store.KeyPrefix):]); err != nil {
		t.Fatal(err)
	}
	h.wantEnd()
	e.wantReset("stream", wire.ResetRevoked)
}
