package procs

import (
	"os"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestNoLeak is not parallel: it counts what the whole test process has.
func TestNoLeak(t *testing.T) {
	fds := func() int { return len(rig.Value(os.ReadDir("/proc/self/fd"))) }
	specs := []Spec{
		{Argv: []string{"/bin/true"}},
		{Argv: []string{"/bin/echo", "x"}, Stdin: true},
		{Argv: []string{"/bin/echo", "x"}, TTY: true},
		{Argv: []string{"/no/such/program"}, Stdin: true},
		{Argv: []string{"/no/such/program"}, TTY: true},
	}
	round := func() {
		for i := range 200 {
			spec := specs[i%len(specs)]
			spec.Dir = "/"
			p, err := Start(spec)
			if err != nil {
				continue
			}
			p.Begin()
			finish(t, p)
			if i%2 == 0 {
				p.KillGroup()
			}
			p.Close()
		}
	}
	round()
	fdsBefore, goroutinesBefore := fds(), rig.Goroutines()
	round()
	rig.Is(t, fds() <= fdsBefore, true, "descriptors: %v, at most %v", fds(), fdsBefore)
	rig.Is(t, rig.Goroutines() <= goroutinesBefore, true, "goroutines: %v, at most %v", rig.Goroutines(), goroutinesBefore)
}

// TestEndedHoldsNothing: an ended process that is kept for its output holds no
// descriptor and no goroutine. Not parallel, as TestNoLeak.
func TestEndedHoldsNothing(t *testing.T) {
	ended := func() {
		p, _ := run(t, Spec{Argv: []string{"/bin/true"}, Stdin: true})
		p.running.Wait()
	}
	ended() // the first one opens the poller of the runtime
	before, _ := os.ReadDir("/proc/self/fd")
	for range 20 {
		ended()
	}
	after, _ := os.ReadDir("/proc/self/fd")
	rig.Is(t, len(after) <= len(before), true, "descriptors with 20 ended processes: %v, at most %v", len(after), len(before))
}

// TestFreed: an ended process says when it holds no descriptor any more. It holds one as long as
// another process is in its group.
func TestFreed(t *testing.T) {
	t.Parallel()
	for _, script := range []string{"exit 0", "sleep 60 >/dev/null 2>&1 &"} {
		var freed atomic.Int32
		p, _ := run(t, Spec{Argv: sh(script), Freed: func() { freed.Add(1) }})
		rig.Is(t, freed.Load() == 0, p.group.held(), "%s: it is not freed", script)
		p.Close()
		rig.Is(t, freed.Load(), 1, "%s: freed after Close", script)
	}
}

// TestIdleMemory is not parallel: it measures memory.
func TestIdleMemory(t *testing.T) {
	const n = 50
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	goroutines := rig.Goroutines()
	for range n {
		begin(t, Spec{Argv: []string{"sleep", "60"}, Stdin: true, Dir: "/"})
	}
	rig.Is(t, max(rig.Goroutines()-goroutines, 3*n), 3*n, "goroutines for %d processes, at most", n)
	runtime.GC()
	runtime.ReadMemStats(&after)
	used := int64(after.HeapAlloc+after.StackInuse) - int64(before.HeapAlloc+before.StackInuse)
	rig.Is(t, max(used/n, 30<<10), 30<<10, "bytes for an idle process, at most")
}
