package usernotify

import (
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

// A thread that waits has the CPU of the test from begin to end, and what it had again
// afterwards; so has the test.
func TestTogether(t *testing.T) {
	pid, all := waiting(t)
	var both together
	both.begin(pid)
	his, mine := cpus(t, pid), cpus(t, 0)
	if his.Count() != 1 || his != mine {
		t.Errorf("kept together they have %d and %d CPUs, and not the same one", his.Count(), mine.Count())
	}
	both.end(pid)
	if his, mine := cpus(t, pid), cpus(t, 0); his != all || mine != all {
		t.Errorf("afterwards they have %d and %d CPUs, had %d", his.Count(), mine.Count(), all.Count())
	}
}

// Who is given other CPUs meanwhile keeps those.
func TestTogetherGivesWay(t *testing.T) {
	pid, all := waiting(t)
	var both together
	both.begin(pid)
	var other unix.CPUSet
	for cpu := 0; other.Count() == 0; cpu++ {
		if now := cpus(t, pid); all.IsSet(cpu) && !now.IsSet(cpu) {
			other.Set(cpu)
		}
	}
	rig.Must(t, unix.SchedSetaffinity(pid, &other))
	both.end(pid)
	if his, mine := cpus(t, pid), cpus(t, 0); his != other || mine != all {
		t.Errorf("the other one lost the CPU that it was given, or the test has not got back its %d CPUs but %d", all.Count(), mine.Count())
	}
}

// Nothing changes when the other one is gone, at any time.
func TestTogetherWithNobody(t *testing.T) {
	_, all := waiting(t)
	const nobody = 1 << 30
	var both together
	if both.begin(nobody) {
		t.Error("nobody is kept")
	}
	both.end(nobody)
	pid, _ := waiting(t)
	both.begin(pid)
	both.end(nobody)
	if mine := cpus(t, 0); mine != all {
		t.Errorf("the test has %d CPUs, had %d", mine.Count(), all.Count())
	}
}

// waiting starts a process that waits, and returns its number and the CPUs of both. The
// test keeps its thread.
func waiting(t *testing.T) (pid int, all unix.CPUSet) {
	t.Helper()
	if runtime.NumCPU() == 1 {
		t.Skip("there is one CPU only")
	}
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	c := exec.Command("sleep", "1000")
	rig.Must(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	return c.Process.Pid, cpus(t, 0)
}

func cpus(t *testing.T, thread int) (set unix.CPUSet) {
	t.Helper()
	rig.Must(t, unix.SchedGetaffinity(thread, &set))
	return set
}
