package procs

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

// TestReaper: orphans are reaped, and no managed process loses its exit code.
func TestReaper(t *testing.T) {
	t.Parallel()
	t.Run("subreaper", func(t *testing.T) {
		t.Parallel()
		output(t, self("reaping-agent", "subreaper"))
	})
	t.Run("PID 1", func(t *testing.T) {
		t.Parallel()
		unshare := []string{"-pf", "--mount-proc"}
		if out, err := exec.Command("unshare", append(unshare, "true")...).CombinedOutput(); err != nil {
			t.Skipf("no PID namespace here: unshare: %v: %s", err, out)
		}
		output(t, exec.Command("unshare", append(unshare, rig.Value(os.Executable()), "reaping-agent", "init")...))
	})
}

// reapingAgent has 60 orphans while it runs 200 processes.
func reapingAgent(t rig.T, mode string) {
	if mode == "subreaper" {
		rig.Must(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	} else if os.Getpid() != 1 {
		t.Fatalf("pid is %d, want 1", os.Getpid())
	}
	reaper := NewReaper(nil)
	defer reaper.Close()

	// A process that is never begun is reaped all the same, and delays no
	// other.
	silent, err := Start(Spec{Argv: []string{"true"}, Dir: "/", Reaper: reaper})
	rig.Must(t, err)
	defer silent.Close()

	errs := make(chan error, 4)
	var workers sync.WaitGroup
	for worker := range 4 {
		workers.Go(func() {
			for i := range 50 {
				if err := reapingRound(reaper, worker*50+i); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	workers.Wait()
	close(errs)
	rig.Must(t, <-errs)
	// All orphans have ended, since their last words were read. The last one
	// may not be reaped yet.
	rig.Until(t, "no children are left", func() bool {
		_, found, err := peek(unix.P_ALL, 0)
		return !found && err == unix.ECHILD
	})
}

// reapingRound runs a process that, in some of the rounds, leaves an orphan.
func reapingRound(reaper *Reaper, i int) error {
	want := i % 100
	script := fmt.Sprintf("exit %d", want)
	if i < 60 {
		script = "sleep 0.05 & " + script
	}
	p, err := Start(Spec{Argv: sh(script), Dir: "/", Reaper: reaper, TTY: i%7 == 0})
	if err != nil {
		return err
	}
	defer p.Close()
	p.Begin()
	<-p.Done()
	if code := exitCode(p); code != want {
		return fmt.Errorf("process %d: exit code %d, want %d", i, code, want)
	}
	if _, err := Start(Spec{Argv: []string{"/no/such/program"}, Dir: "/", Reaper: reaper}); err == nil ||
		!strings.Contains(err.Error(), syscall.ENOENT.Error()) {
		return fmt.Errorf("process %d: starting a missing program: %v", i, err)
	}
	return nil
}

// TestAbandoned: what a stage leaves that was killed is ended, and no other orphan.
func TestAbandoned(t *testing.T) {
	t.Parallel()
	output(t, self("abandoning-agent"))
}

// abandoningAgent runs a command that leaves a process, and then a stage that is
// killed and leaves others, with one below them that is nobody's child yet.
func abandoningAgent(t rig.T) {
	const mark = "31536001" // a duration that the processes of the stage sleep
	reaper := NewReaper(func(pid int) bool {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return strings.Contains(string(line), mark)
	})
	defer reaper.Close()
	pair := rig.Value(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0))
	defer unix.Close(pair[1])
	stage := func(Program) (*Stage, error) {
		script := "setsid sh -c 'sleep " + mark + " & sleep " + mark + "; :' & sleep " + mark + " & sleep 0.2; kill -9 $$"
		return &Stage{
			Path: "/bin/sh", Argv: []string{"sh", "-c", script}, Env: os.Environ(),
			Leash: os.NewFile(uintptr(pair[0]), "leash"), Grace: time.Millisecond,
		}, nil
	}
	one, err := Start(Spec{Argv: []string{"x"}, Dir: "/", Reaper: reaper, Stage: stage})
	rig.Must(t, err)
	defer one.Close()
	// The agent is a subreaper from here on.
	other, err := Start(Spec{Argv: sh("setsid sleep 31536002 > /dev/null 2>&1 & exit 3"), Dir: "/", Reaper: reaper})
	rig.Must(t, err)
	defer other.Close()
	other.Begin()
	one.Begin()
	<-one.Done()
	<-other.Done()
	rig.Is(t, exitCode(one), 137, "exit code of the stage")
	rig.Until(t, "only the orphan of the command is left", func() bool {
		left := Children()
		if len(left) != 1 {
			return false
		}
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", left[0]))
		return strings.Contains(string(line), "31536002")
	})
	rig.Must(t, syscall.Kill(Children()[0], syscall.SIGKILL))
}

func TestNilReaper(t *testing.T) {
	t.Parallel()
	var r *Reaper
	rig.Is(t, fmt.Sprint(r.Fork(func() (int, error) { return 7, nil })), "7 <nil>", "Fork")
	r.Reaped(7)
	r.Close()
}
