package supervise

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
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

var _ = child("limits", func(args []string) error {
	supervisor, _ := strconv.Atoi(args[0])
	outside, _ := strconv.Atoi(args[1])
	own := exec.Command("/bin/sleep", "1000")
	own.Stdout, own.Stderr = os.Stdout, os.Stderr // the null device is nobody's to open here
	if err := own.Start(); err != nil {
		return err
	}
	defer func() {
		_ = own.Process.Kill()
		_ = own.Wait()
	}()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &limit); err != nil {
		return err
	}
	limit.Cur = limit.Max // nothing else that whoever starts the tests may not raise
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return err
	}
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
		if err := unix.Prlimit(c.id, unix.RLIMIT_CORE, &limit, nil); err != c.want {
			fmt.Printf("prlimit of %s: %v\n", c.what, err)
		}
		if err := unix.SchedSetaffinity(c.id, &set); err != c.want {
			fmt.Printf("sched_setaffinity of %s: %v\n", c.what, err)
		}
		if err := unix.Setpriority(unix.PRIO_PROCESS, c.id, 5); err != c.want {
			fmt.Printf("setpriority of %s: %v\n", c.what, err)
		}
		const bestEffort = 2<<13 | 7
		if _, _, errno := unix.Syscall(unix.SYS_IOPRIO_SET, 1, uintptr(c.id), bestEffort); errno != 0 && errno != c.want || errno == 0 && c.want != nil {
			fmt.Printf("ioprio_set of %s: %v\n", c.what, errno)
		}
		if err := unix.Prlimit(c.id, unix.RLIMIT_CORE, nil, &limit); c.want == nil && err != nil {
			fmt.Printf("reading the limit of %s: %v\n", c.what, err)
		}
	}
	if err := unix.Setpriority(unix.PRIO_USER, 0, 5); err != syscall.EPERM {
		fmt.Println("setpriority of a user:", err)
	}
	if err := unix.Setpriority(unix.PRIO_PGRP, 0, 5); err != syscall.EPERM {
		fmt.Println("setpriority of a group:", err)
	}
	return nil
})

// TestCPUs: who opens files has the same CPUs before and afterwards, although the
// supervisor keeps its callers on one meanwhile.
func TestCPUs(t *testing.T) {
	t.Parallel()
	rig.Is(t, supervised(t, Config{Policy: workspace(t, t.TempDir())}, sandbox.LevelMetadata, "cpus"), "", "out")
}

var _ = child("cpus", func([]string) error {
	var all, now unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return err
	}
	for range 1000 {
		fd := rig.Value(unix.Open("/proc/self/exe", unix.O_RDONLY, 0))
		unix.Close(fd)
		if err := unix.SchedGetaffinity(0, &now); err != nil || now != all {
			return fmt.Errorf("%d CPUs instead of %d: %w", now.Count(), all.Count(), err)
		}
	}
	return nil
})
