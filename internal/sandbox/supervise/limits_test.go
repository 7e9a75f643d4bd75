package supervise

import (
	"os"
	"os/exec"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// TestLimits: a command may change the limits and the scheduling of its own
// processes, and of no others.
func TestLimits(t *testing.T) {
	t.Parallel()
	out := supervised(t, Config{Policy: workspace(t, t.TempDir())}, sandbox.LevelWrites, "limits", strconv.Itoa(os.Getpid()), strconv.Itoa(os.Getppid()))
	rig.Is(t, out, "", "out")
}

var _ = child("limits", func(t rig.T, args []string) {
	supervisor, _ := strconv.Atoi(args[0])
	outside, _ := strconv.Atoi(args[1])
	own := exec.Command("/bin/sleep", "1000")
	own.Stdout, own.Stderr = os.Stdout, os.Stderr // the null device is nobody's to open here
	rig.Must(t, own.Start())
	defer func() {
		_ = own.Process.Kill()
		_ = own.Wait()
	}()
	var limit unix.Rlimit
	rig.Must(t, unix.Getrlimit(unix.RLIMIT_CORE, &limit))
	limit.Cur = limit.Max // nothing else that whoever starts the tests may not raise
	var set unix.CPUSet
	rig.Must(t, unix.SchedGetaffinity(0, &set))
	for _, c := range []struct {
		what string
		id   int
		want error
	}{
		{"its child", own.Process.Pid, nil},
		{"itself", os.Getpid(), nil},
		{"its thread", unix.Gettid(), nil},
		{"the supervisor", supervisor, unix.EPERM},
		{"a process outside", outside, unix.EPERM},
		{"the first process", 1, unix.EPERM},
		{"nobody", 1 << 22, unix.EPERM},
		{"a number below 0", -5, unix.EPERM},
	} {
		rig.Is(t, unix.Prlimit(c.id, unix.RLIMIT_CORE, &limit, nil), c.want, "prlimit of %s", c.what)
		rig.Is(t, unix.SchedSetaffinity(c.id, &set), c.want, "sched_setaffinity of %s", c.what)
		rig.Is(t, unix.Setpriority(unix.PRIO_PROCESS, c.id, 5), c.want, "setpriority of %s", c.what)
		const bestEffort = 2<<13 | 7
		rig.Is(t, rawCall(unix.SYS_IOPRIO_SET, 1, uintptr(c.id), bestEffort), c.want, "ioprio_set of %s", c.what)
		if c.want == nil {
			rig.Check(t, unix.Prlimit(c.id, unix.RLIMIT_CORE, nil, &limit))
		}
	}
	rig.Is[error](t, unix.Setpriority(unix.PRIO_USER, 0, 5), unix.EPERM, "setpriority of a user")
	rig.Is[error](t, unix.Setpriority(unix.PRIO_PGRP, 0, 5), unix.EPERM, "setpriority of a group")
})

// TestCPUs: who opens files has the same CPUs before and afterwards, although the
// supervisor keeps its callers on one meanwhile.
func TestCPUs(t *testing.T) {
	t.Parallel()
	rig.Is(t, supervised(t, Config{Policy: workspace(t, t.TempDir())}, sandbox.LevelMetadata, "cpus"), "", "out")
}

var _ = child("cpus", func(t rig.T, _ []string) {
	var all, now unix.CPUSet
	rig.Must(t, unix.SchedGetaffinity(0, &all))
	for range 1000 {
		fd := rig.Value(unix.Open("/proc/self/exe", unix.O_RDONLY, 0))
		unix.Close(fd)
		rig.Must(t, unix.SchedGetaffinity(0, &now))
		rig.Is(t, now, all, "the CPUs")
	}
})
