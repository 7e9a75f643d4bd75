package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/execagent/execagent/test/rig"
)

var (
	flagSoak      = flag.Duration("soak", 0, "how long TestSoak works (make soak); 0: two minutes each night")
	flagSoakAgent = flag.String("soak-agent", "", "program to soak instead of the agent of this tree, started with the same arguments")
)

const (
	soakClients = 12
	// soakTTL is how long ended processes and detached sessions are kept: short, so that memory
	// is flat early.
	soakTTL = 5 * time.Second
	// soakFiles is how many descriptors the agent may open once and for all with its first process.
	soakFiles = 8
)

// TestSoak has clients work as TestCuts does, for long: in the end memory and descriptors are
// where they were, and no process is left.
func TestSoak(t *testing.T) {
	duration := *flagSoak
	if duration == 0 {
		rig.Tier(t, rig.Nightly)
		duration = 2 * time.Minute
	}
	seed := cutsSeed(t)
	program := *flagSoakAgent
	if program == "" {
		program = rig.Agent(t)
	}
	cmd := exec.Command(program, "--listen", "ws://127.0.0.1:0", "--session-ttl", soakTTL.String())
	agent := rig.Start(t, cmd)
	address, pid := strings.TrimPrefix(agent.Line(t), "ws://"), agent.Process.Pid
	before := countFiles(t, pid)
	c := &cutting{seed: seed, server: address, clients: soakClients, most: 2_000_000, config: byURL, mark: fmt.Sprintf("soak-%d-%d", os.Getpid(), seed)}
	var peaks [3]int
	c.run(t, goleak.IgnoreCurrent(), func(ctx context.Context) { peaks = watchMemory(ctx, pid, duration) })
	t.Logf("%d jobs over %d cuts; memory at its peak %d KiB in the second third, %d KiB in the last", c.jobs, c.faults(), peaks[1], peaks[2])
	rig.Is(t, c.jobs < soakClients || c.faults() < soakClients, false, "only %d jobs and %d cuts", c.jobs, c.faults())
	if limit := peaks[1]*5/4 + 8<<10; peaks[2] > limit {
		t.Errorf("memory grows: the peak of the last third is %d KiB, that of the second %d KiB", peaks[2], peaks[1])
	}
	// The sessions have ended, or are detached and expire; what they held goes with them.
	rig.Until(t, "few descriptors are open", func() bool { return countFiles(t, pid) <= before+soakFiles })
	noneLeft(t, c.mark)
	agent.Terminate(t)
}

// watchMemory samples the resident memory of pid for the duration and returns the peak of each
// third, in KiB.
func watchMemory(ctx context.Context, pid int, duration time.Duration) (peaks [3]int) {
	ticker := time.NewTicker(duration / 300)
	defer ticker.Stop()
	for start := time.Now(); ; {
		select {
		case <-ctx.Done():
			return peaks
		case <-ticker.C:
		}
		third := int(3 * time.Since(start) / duration)
		if third > 2 {
			return peaks
		}
		resident, ok := rig.Memory(pid, "VmRSS")
		if !ok {
			return peaks // the agent died: the sessions tell
		}
		peaks[third] = max(peaks[third], resident)
	}
}

func countFiles(t *testing.T, pid int) int {
	t.Helper()
	entries := rig.Value(os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid)))
	return len(entries)
}
