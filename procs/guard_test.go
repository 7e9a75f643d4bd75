package procs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/test/rig"
)

func testGuard() *Guard {
	return &Guard{Path: selfPath, Argv: []string{os.Args[0], "guard"}}
}

// guardedAgent starts a process, prints the line that the process prints, and waits to be killed. If
// the process is to end first, the line comes after its end.
func guardedAgent(guard *Guard, argv []string, ends bool) error {
	line := make(chan []byte, 1)
	p, err := Start(Spec{
		Argv: argv, Dir: "/", Env: os.Environ(), Guard: guard,
		Sink: func(ev Event) {
			if len(ev.Data) > 0 {
				line <- slices.Clone(ev.Data)
			}
		},
	})
	if err != nil {
		return err
	}
	p.Begin()
	if ends {
		<-p.Done()
	}
	os.Stdout.Write(<-line)
	time.Sleep(time.Minute)
	return errors.New("nobody has killed the agent")
}

// gone waits until a group has no members but zombies.
func gone(t *testing.T, pgid int) {
	t.Helper()
	rig.Until(t, "the group has no members", func() bool {
		return syscall.Kill(-pgid, 0) == syscall.ESRCH || zombies(pgid)
	})
}

// zombies reports whether all members of a group are dead. A test cannot wait until
// they are reaped: that is up to the init of this machine.
func zombies(pgid int) bool {
	for pid := range leftGroups().pids {
		if s, err := linux.StatOf(pid); err == nil && s.Number(linux.StatGroup) == pgid && !s.Dead() {
			return false
		}
	}
	return true
}

// TestGuard: whatever the agent dies of, none of its processes stays (rpc.md 1.5).
func TestGuard(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		role string
		sig  syscall.Signal
	}{
		{"guarded-agent", syscall.SIGKILL},
		{"guarded-agent", syscall.SIGHUP},
		{"guarded-agent", syscall.SIGABRT},
		{"unguarded-agent", syscall.SIGKILL}, // the leader dies all the same
	} {
		t.Run(tt.role+"/"+tt.sig.String(), func(t *testing.T) {
			t.Parallel()
			agent := self(tt.role)
			pgid := rig.Value(strconv.Atoi(strings.Fields(firstLine(t, agent))[0]))
			rig.Must(t, agent.Process.Signal(tt.sig))
			_ = agent.Wait() // it was killed
			gone(t, pgid)
		})
	}
}

func TestGuardTable(t *testing.T) {
	t.Parallel()
	guard := testGuard()
	defer guard.Close()
	value := func(p *Process) uint64 { return guard.slots[p.slot-1].Load() }

	running, _ := begin(t, Spec{Argv: []string{"sleep", "60"}, Guard: guard})
	rig.Is(t, value(running), uint64(running.PID()), "the slot of a running process")
	left, _ := run(t, Spec{Argv: sh("sleep 60 >/dev/null 2>&1 & exit 0"), Guard: guard})
	if want := uint64(left.PID()) | left.group.known<<guardPID; value(left) != want || left.group.known == 0 {
		t.Errorf("slot of a leaderless group is %#x, want %#x, reaped at %d", value(left), want, left.group.known)
	}
	slot := left.slot
	left.Close()
	rig.Is(t, guard.slots[slot-1].Load(), 0, "slot of a closed group")
	ended, _ := run(t, Spec{Argv: []string{"true"}, Guard: guard})
	rig.Is(t, ended.slot, 0, "an ended process without group keeps slot")
	rig.Is[error](t, rig.Err(Start(Spec{Argv: []string{"/no/such"}, Dir: "/", Guard: guard})), syscall.ENOENT, "a missing program")
	next, _ := launch(t, Spec{Argv: []string{"sleep", "60"}, Guard: guard})
	rig.Is(t, fmt.Sprint(next.slot, guard.used), fmt.Sprint(slot, 2), "the slot and how many are used")

	// Close kills a process that is left.
	rig.Must(t, guard.Close())
	gone(t, running.PID())
	rig.Is(t, rig.Err(Start(Spec{Argv: []string{"true"}, Dir: "/", Guard: guard})), os.ErrClosed, "Start with a closed guard")
}

// TestGuardJobs: jobs that lead groups of their own die with the agent too,
// whether their shell still runs or not.
func TestGuardJobs(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"stay", "exit"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			agent := self("guarded-jobs", mode)
			job, escaped := openJobs(t, firstLine(t, agent))
			rig.Must(t, agent.Process.Kill())
			_ = agent.Wait() // it was killed
			rig.Is(t, endsWithin(t, job, waitMs), true, "the job has ended with the agent")
			rig.Is(t, endsWithin(t, escaped, 0), false, "a process in a session of its own was killed")
		})
	}
}

// TestGuardRestart: a guard that was killed is replaced, and the new one knows
// the old groups.
func TestGuardRestart(t *testing.T) {
	t.Parallel()
	guard := testGuard()
	defer guard.Close()
	old, _ := launch(t, Spec{Argv: []string{"sleep", "60"}, Guard: guard})
	pipe, err := guard.alive.Stat()
	rig.Must(t, err)
	killed := 0
	for pid := range leftGroups().pids {
		if isGuard(pid, pipe) {
			killed++
			rig.Must(t, syscall.Kill(pid, syscall.SIGKILL))
		}
	}
	rig.Is(t, killed, 1, "processes that are our guard")
	rig.Until(t, "the end of the guard is noticed", func() bool {
		guard.mu.Lock()
		defer guard.mu.Unlock()
		return guard.alive == nil
	})
	launch(t, Spec{Argv: []string{"sleep", "60"}, Guard: guard})
	guard.Close()
	gone(t, old.PID())
}

// isGuard reports whether pid is the guard that reads from pipe.
func isGuard(pid int, pipe os.FileInfo) bool {
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !strings.HasSuffix(string(args), "\x00guard\x00") {
		return false
	}
	stdin, err := os.Stat(fmt.Sprintf("/proc/%d/fd/0", pid))
	return err == nil && os.SameFile(stdin, pipe)
}

// TestGuardMainSpares: entries that name nobody, or a stranger, harm nobody.
func TestGuardMainSpares(t *testing.T) {
	t.Parallel()
	p, _ := launch(t, Spec{Argv: []string{"sleep", "60"}})
	var table []byte
	for _, v := range []uint64{0, 1, 1 | 1<<guardPID, uint64(p.PID()) | 1<<guardPID, 1<<guardPID - 1} {
		table = binary.NativeEndian.AppendUint64(table, v)
	}
	rig.Must(t, killGuarded(bytes.NewReader(table)))
	rig.Is(t, p.Terminate(), true, "it was running, and not killed for the dead leader whose number the table gives")
}
