package relay

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestBackoff(t *testing.T) {
	t.Parallel()
	limits := []time.Duration{ // doubling from 100 ms, as remote.md 3.5 says
		0, 100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond,
		1600 * time.Millisecond, 3200 * time.Millisecond, 6400 * time.Millisecond, 12800 * time.Millisecond,
		25600 * time.Millisecond, 30 * time.Second, 30 * time.Second,
	}
	tests := []struct {
		name    string
		most    time.Duration
		prepare func(b *backoff) // before the attempts
		waiting bool
	}{
		{"no websocket yet", 30 * time.Second, func(*backoff) {}, false},
		{"a stream waits", 5 * time.Second, func(*backoff) {}, true},
		{"a websocket ends after 30 s", 5 * time.Second, func(b *backoff) {
			for range 20 {
				b.next(false)
			}
			b.connected()
			time.Sleep(30 * time.Second)
		}, false},
		{"and a minute without one", 30 * time.Second, func(b *backoff) {
			b.connected()
			b.next(false)
			time.Sleep(60 * time.Second)
			b.attempts = 0
		}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				longest := make([]time.Duration, len(limits))
				shortest := make([]time.Duration, len(limits))
				for round := range 400 {
					var b backoff
					tt.prepare(&b)
					for i, limit := range limits {
						limit = min(limit, tt.most)
						d := b.next(tt.waiting)
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
					limit = min(limit, tt.most)
					if longest[i] < limit*9/10 || shortest[i] > limit/10 {
						t.Errorf("delay %d: got %v to %v, want about 0 to %v", i, shortest[i], longest[i], limit)
					}
				}
			})
		})
	}
}

// TestBackoffFlaps: a websocket that ends every three seconds is away for less
// than five each time, however long that goes on. A stream lives for 30 s
// without one.
func TestBackoffFlaps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b backoff
		began := time.Now()
		for n := 0; time.Since(began) < time.Hour; n++ {
			b.connected()
			time.Sleep(3 * time.Second)
			d := b.next(n%2 == 0)
			if d > 2*time.Second { // the websocket was up for the rest
				t.Fatalf("drop %d: got a delay of %v, want at most 2s", n, d)
			}
			time.Sleep(d)
		}
	})
}

func TestBackoffNeverOverflows(t *testing.T) {
	t.Parallel()
	b := backoff{attempts: 1 << 40}
	done := make(chan time.Duration, 1)
	go func() { done <- b.next(false) }()
	select {
	case d := <-done:
		if d < 0 || d > defaultMostDelay {
			t.Errorf("got %v, want at most %v", d, defaultMostDelay)
		}
	case <-time.After(patience):
		t.Error("next takes as long as there were attempts")
	}
}
