package e2e

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

var (
	flagSoak      = flag.Duration("soak", 0, "how long TestSoak works; 0 skips it (make soak)")
	flagSoakSeed  = flag.Uint64("soak-seed", 0, "seed of TestSoak's choices; 0 takes one at random")
	flagSoakAgent = flag.String("soak-agent", "", "program to soak instead of the agent of this tree, started with the same arguments")
)

const (
	soakSessions = 4
	soakWorkers  = 3 // per session
	// soakTTL is how long ended processes and detached sessions are kept: short, so that memory
	// is flat early.
	soakTTL = 5 * time.Second
	// soakFiles is how many descriptors the agent may open once and for all with its first process.
	soakFiles = 8
)

// TestSoak drives a real agent with random process and file work over connections that are cut at
// random. Every byte of output, every exit code and every file is checked; in the end memory and
// descriptors are where they were and no process is left.
func TestSoak(t *testing.T) {
	if *flagSoak == 0 {
		t.Skip("takes minutes: make soak")
	}
	seed := *flagSoakSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("repeat with -soak-seed %d", seed)
	mark := fmt.Sprintf("soak-%d-%d", os.Getpid(), seed)
	url, pid := startSoakAgent(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	before := countFiles(t, pid)

	ctx, fail := context.WithCancelCause(t.Context())
	defer fail(nil)
	workDone, runDone := make(chan struct{}), make(chan struct{})
	var working, running sync.WaitGroup
	var sessions []*soakSession
	var workers []*soakWorker
	for i := range soakSessions {
		s := newSoakSession(url, seed+uint64(i), fail)
		sessions = append(sessions, s)
		running.Go(func() {
			if err := s.run(ctx, runDone); err != nil {
				fail(err)
			}
		})
		for j := range soakWorkers {
			w := &soakWorker{session: s, random: rand.New(rand.NewPCG(seed+uint64(i), uint64(j+2))), mark: mark}
			w.dir = filepath.Join(dir, fmt.Sprintf("%d-%d", i, j))
			if err := os.Mkdir(w.dir, 0o755); err != nil {
				t.Fatal(err)
			}
			workers = append(workers, w)
			working.Go(func() {
				if err := w.work(ctx, workDone); err != nil {
					fail(err)
				}
			})
		}
	}
	peaks := watchMemory(ctx, pid, *flagSoak)
	close(workDone)
	working.Wait()
	close(runDone)
	running.Wait()
	if err := context.Cause(ctx); err != nil {
		t.Fatal(err)
	}
	jobs, cuts := 0, 0
	for _, w := range workers {
		jobs += w.jobs
	}
	for _, s := range sessions {
		cuts += s.cuts
	}
	t.Logf("%d jobs over %d cuts; memory at its peak %d KiB in the second third, %d KiB in the last", jobs, cuts, peaks[1], peaks[2])
	if jobs < soakSessions*soakWorkers || cuts < soakSessions {
		t.Errorf("only %d jobs and %d cuts", jobs, cuts)
	}
	if limit := peaks[1]*5/4 + 8<<10; peaks[2] > limit {
		t.Errorf("memory grows: the peak of the last third is %d KiB, that of the second %d KiB", peaks[2], peaks[1])
	}
	// The sessions are detached now and expire; what they held goes with them.
	eventually(t, soakTTL+20*time.Second, func() error {
		if n := countFiles(t, pid); n > before+soakFiles {
			return fmt.Errorf("%d descriptors are open, %d before", n, before)
		}
		return noneMarked(mark)
	})
}

// startSoakAgent builds and starts the agent and stops it when the test ends.
func startSoakAgent(t *testing.T) (url string, pid int) {
	t.Helper()
	program := *flagSoakAgent
	if program == "" {
		program = rig.Agent(t)
	}
	cmd := exec.Command(program, "--listen", "ws://127.0.0.1:0", "--session-ttl", soakTTL.String())
	cmd.Stderr = t.Output()
	agent := rig.Start(t, cmd)
	t.Cleanup(func() {
		if agent.Gone() {
			t.Errorf("the agent ended early: %v", agent.ProcessState)
		}
		agent.Terminate(t)
	})
	return agent.Line(t), agent.Process.Pid
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
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatalf("the agent is gone: %v", err)
	}
	return len(entries)
}

// noneMarked returns an error that names a living process with SOAK_MARK=mark in its environment.
func noneMarked(mark string) error {
	environs, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return err
	}
	for _, path := range environs {
		// A process that ends meanwhile cannot be read, nor can one of another user: neither is
		// ours.
		if env, err := os.ReadFile(path); err == nil && bytes.Contains(env, []byte("SOAK_MARK="+mark)) {
			return fmt.Errorf("a process is left: %s", filepath.Dir(path))
		}
	}
	return nil
}

// eventually polls: only /proc tells these facts, and it wakes nobody.
func eventually(t *testing.T, patience time.Duration, check func() error) {
	t.Helper()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(patience); ; <-ticker.C {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Error(err)
			return
		}
	}
}
