package relay

import (
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
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
		subtest(t, tt.name, func(t *testing.T) {
			longest := make([]time.Duration, len(limits))
			shortest := make([]time.Duration, len(limits))
			for round := range 400 {
				var b backoff
				tt.prepare(&b)
				for i, limit := range limits {
					limit = min(limit, tt.most)
					d := b.next(tt.waiting)
					rig.Is(t, min(max(d, 0), limit), d, "delay %d", i)
					longest[i] = max(longest[i], d)
					if round == 0 || d < shortest[i] {
						shortest[i] = d
					}
				}
			}
			for i, limit := range limits { // jitter uses all of the range
				limit = min(limit, tt.most)
				rig.Is(t, longest[i] >= limit*9/10 && shortest[i] <= limit/10, true, "delay %d is all of 0 to %v", i, limit)
			}
		})
	}
}

// TestBackoffFlaps: a websocket that ends every three seconds is away for less
// than five each time, however long that goes on. A stream lives for 30 s
// without one.
func TestBackoffFlaps(t *testing.T) {
	alone(t, func(t *testing.T) {
		var b backoff
		began := time.Now()
		for n := 0; time.Since(began) < time.Hour; n++ {
			b.connected()
			time.Sleep(3 * time.Second)
			d := b.next(n%2 == 0)
			rig.Is(t, min(d, 2*time.Second), d, "delay of drop %d: the websocket was up for the rest", n)
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
		rig.Is(t, min(max(d, 0), defaultMostDelay), d, "delay")
	case <-time.After(patience):
		t.Error("next takes as long as there were attempts")
	}
}
