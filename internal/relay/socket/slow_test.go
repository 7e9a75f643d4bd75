package socket

import (
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// TestSlow: a message that the network does not take counts as slow with the time, and one
// that comes in part does, too.
func TestSlow(t *testing.T) {
	t.Parallel()
	budget := NewBudget(1<<30, nil)
	p, s := rawTCP(t, Config{Memory: budget, Large: make(chan struct{}, 1)})
	begin := time.Now()
	n, _ := s.Slow(time.Now())
	rig.Is(t, n, 0, "bytes without a message")
	lane := s.NewLane(64 << 20)
	lane.Share(budget)
	for range 200 { // 40 MB, more than the kernel takes
		if !lane.TrySend(message(strings.Repeat("x", 200_000))) {
			t.Fatal("the lane takes no more")
		}
	}
	slow := func(least int) {
		t.Helper()
		rig.Until(t, "the bytes are slow", func() bool {
			n, since := s.Slow(time.Now().Add(-50 * time.Millisecond))
			return n >= least && !since.Before(begin)
		})
	}
	slow(200_000)
	lane.Discard()
	n, _ = s.Slow(time.Now())
	rig.Is(t, n >= 200_000, true, "bytes that are slow: %v, at least %v", n, 200_000)
	rig.Is(t, budget.Used(), n, "bytes that are held")
	n, _ = s.Slow(begin)
	rig.Is(t, n, 0, "bytes that are slow since before the begin")
	drainAll(s)
	p.Send(t, append([]byte{0x82, 0xff, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0}, make([]byte, 70_000)...))
	slow(270_000)
	s.Close()
	rig.Is(t, budget.Used(), 0, "bytes are held in the end")
}
