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
	if n, _ := s.Slow(time.Now()); n != 0 {
		t.Errorf("%d bytes without a message", n)
	}
	lane := s.NewLane(64 << 20)
	lane.Share(budget)
	for range 200 { // 40 MB, more than the kernel takes
		if !lane.TrySend(message(strings.Repeat("x", 200_000))) {
			t.Fatal("the lane takes no more")
		}
	}
	slow := func(least int) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			n, since := s.Slow(time.Now().Add(-50 * time.Millisecond))
			if n >= least && !since.Before(begin) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d bytes are slow, at least %d should be", n, least)
			}
		}
	}
	slow(200_000)
	lane.Discard()
	if n, _ := s.Slow(time.Now()); n < 200_000 || budget.Used() != n {
		t.Errorf("%d bytes are slow, %d are held", n, budget.Used())
	}
	if n, _ := s.Slow(begin); n != 0 {
		t.Errorf("%d bytes are slow since before the begin", n)
	}
	go func() {
		for {
			m, err := s.Read()
			if err != nil {
				return
			}
			m.Release()
		}
	}()
	p.Send(t, append([]byte{0x82, 0xff, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0}, make([]byte, 70_000)...))
	slow(270_000)
	s.Close()
	rig.Is(t, budget.Used(), 0, "bytes are held in the end")
}
