package relay

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestBackoff(t *testing.T) {
	t.Parallel()
	limits := []time.Duration{ // D19
		0, 100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond,
		1600 * time.Millisecond, 3200 * time.Millisecond, 6400 * time.Millisecond, 12800 * time.Millisecond,
		25600 * time.Millisecond, 30 * time.Second, 30 * time.Second,
	}
	longest := make([]time.Duration, len(limits))
	shortest := make([]time.Duration, len(limits))
	for round := range 400 {
		var b backoff
		for range round % 3 { // however many there were before
			b.next()
		}
		b.reset()
		for i, limit := range limits {
			d := b.next()
			if d < 0 || d > limit {
				t.Fatalf("delay %d: got %v, want 0 to %v", i, d, limit)
			}
			longest[i] = max(longest[i], d)
			if round == 0 || d < shortest[i] {
				shortest[i] = d
			}
		}
	}
	for i, limit := range limits { // jitter uses all of the range
		if longest[i] < limit*9/10 || shortest[i] > limit/10 {
			t.Errorf("delay %d: got %v to %v, want about 0 to %v", i, shortest[i], longest[i], limit)
		}
	}
}

func TestBackoffNeverOverflows(t *testing.T) {
	t.Parallel()
	b := backoff{attempts: 1 << 40}
	done := make(chan time.Duration, 1)
	go func() { done <- b.next() }()
	select {
	case d := <-done:
		if d < 0 || d > defaultMostDelay {
			t.Errorf("got %v, want at most %v", d, defaultMostDelay)
		}
	case <-time.After(patience):
		t.Error("next takes as long as there were attempts")
	}
}

func TestSleep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := sleep(t.Context(), time.Minute); err != nil || time.Since(began) != time.Minute {
			t.Errorf("got %v after %v, want nil after 1m", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		if err := sleep(ctx, time.Minute); err == nil || time.Since(began) != time.Second {
			t.Errorf("got %v after %v, want an error after 1s", err, time.Since(began))
		}
		if err := sleep(ctx, -time.Second); err == nil {
			t.Error("sleeping no time with a context that has ended: got nil")
		}
	})
}
