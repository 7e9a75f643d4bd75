package procs

import (
	"fmt"
	"sync"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func TestBudgetOrder(t *testing.T) {
	t.Parallel()
	const size = 1000
	cost := costOf(make([]byte, size))
	b := &Budget{Max: 6 * cost}
	write := func(l *log, n int) {
		for range n {
			l.add(Event{Kind: Output, Data: make([]byte, size)})
		}
	}
	end := func(l *log) {
		l.add(Event{Kind: Exited})
		l.add(Event{Kind: Closed})
	}
	first, second, third, live, writer := &log{}, &log{}, &log{}, &log{}, &log{}
	for _, l := range []*log{first, second, third, live, writer} {
		l.retain, l.budget = DefaultRetainBytes, b
	}
	check := func(step string, want ...int) {
		t.Helper()
		for i, l := range []*log{first, second, third, live, writer} {
			rig.Is(t, len(l.read(0, nil).Chunks), want[i], "%s: chunks that log %d keeps", step, i)
		}
		rig.Is(t, b.Used() <= b.Max, true, "%s: bytes in use: %v, at most %v", step, b.Used(), b.Max)
	}
	write(first, 1)
	write(second, 2)
	write(third, 1)
	write(live, 2)
	end(second) // it closed first
	end(first)
	end(third)
	check("full", 1, 2, 1, 2, 0)
	write(writer, 1)
	check("the one that closed first sheds its oldest", 1, 1, 1, 2, 1)
	write(writer, 2)
	check("then the next", 0, 0, 1, 2, 3)
	third.free()
	check("a freed one makes room", 0, 0, 0, 2, 3)
	write(writer, 4)
	check("no closed one is left", 0, 0, 0, 2, 4)
	write(live, 1)
	check("the one that writes sheds", 0, 0, 0, 2, 4)
	for _, l := range []*log{first, second, live, writer} {
		l.free()
	}
	rig.Is(t, fmt.Sprint(b.Used(), len(b.owners)), "0 0", "bytes and owners with logs after the end")
}

// TestBudgetOfOwners: whoever holds the most loses output, also of processes that run. An owner
// alone has all of the budget.
func TestBudgetOfOwners(t *testing.T) {
	t.Parallel()
	cost := costOf(nil)
	b := &Budget{Max: 8 * cost}
	var logs []*log
	for _, owner := range []string{"a", "a", "a", "b", "c"} {
		logs = append(logs, &log{retain: DefaultRetainBytes, budget: b.For(owner)})
	}
	for _, step := range []struct {
		write, times int
		end          bool
		want         string
	}{
		{0, 3, true, "[3 0 0 0 0]"},
		{1, 4, false, "[3 4 0 0 0]"},
		{2, 3, false, "[1 4 3 0 0]"},
		{3, 2, true, "[0 3 3 2 0]"},
		{4, 3, false, "[0 0 3 2 3]"},
		{4, 1, false, "[0 0 3 2 3]"}, // now c holds the most
	} {
		for range step.times {
			logs[step.write].add(Event{Kind: Output})
		}
		if step.end {
			logs[step.write].add(Event{Kind: Closed})
		}
		var kept []int
		for _, l := range logs {
			kept = append(kept, len(l.read(0, nil).Chunks))
		}
		rig.Is(t, fmt.Sprint(kept), step.want, "%+v: chunks that are kept", step)
	}
	tails := fmt.Sprint(logs[3].hold(int(2*cost)), logs[3].hold(int(2*cost))) // b's, whose log has 2 chunks
	logs[4].add(Event{Kind: Output})
	rig.Is(t, fmt.Sprintln(tails, len(logs[3].read(0, nil).Chunks), b.Used() <= b.Max), "true false 2 true\n", "b keeps its share of the tails, and its chunks")
}

func TestBudgetOfProcesses(t *testing.T) {
	t.Parallel()
	b := &Budget{Max: 300_000}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			p, rec := run(t, Spec{Argv: sh("head -c 200000 /dev/zero"), Budget: b})
			rig.Is(t, len(rec.data), 200_000, "bytes announced")
			p.Read(0, nil)
		})
	}
	all.Wait()
	if used := b.Used(); used > b.Max || used == 0 {
		t.Errorf("%d bytes in use, want at most %d", used, b.Max)
	}
}
