package hostile

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

// fault is something that happens to the inits of a command while that writes. It returns how long
// the command may go on before it is terminated; 0: it is not terminated, and has to end.
type fault struct {
	name string
	do   func(t *testing.T, outer, inner int) time.Duration
	// How the command ends, where it is not terminated.
	code   int
	says   string
	aborts bool // its outer init may have ended by SIGABRT, and cannot say so
	slow   bool // the runtime of a supervisor that crashes waits 5 seconds for each of its threads
}

// sends returns what sends a signal to inits, one after the other; the inner one is the supervisor.
func sends(sig syscall.Signal, wait time.Duration, inits ...string) func(t *testing.T, outer, inner int) time.Duration {
	return func(t *testing.T, outer, inner int) time.Duration {
		for _, init := range inits {
			send(t, map[string]int{"outer": outer, "inner": inner}[init], sig)
		}
		return wait
	}
}

const moment = 50 * time.Millisecond

var faults = []fault{
	{name: "the supervisor is killed", code: 101, says: "sandbox: the supervisor was ended", do: sends(syscall.SIGKILL, 0, "inner")},
	{name: "the outer init is killed", code: 137, do: sends(syscall.SIGKILL, 0, "outer")},
	{name: "both inits are killed, the outer one first", code: 137, do: sends(syscall.SIGKILL, 0, "outer", "inner")},
	{name: "both inits are killed, the inner one first", code: -1, do: sends(syscall.SIGKILL, 0, "inner", "outer")},
	{name: "the supervisor crashes", slow: true, code: 101, says: "sandbox: the supervisor was ended", do: sends(syscall.SIGSEGV, 0, "inner")},
	{
		name: "the supervisor is stopped for a time",
		do: func(t *testing.T, _, inner int) time.Duration {
			send(t, inner, syscall.SIGSTOP)
			time.Sleep(hunting(moment, moment, []time.Duration{moment, moment, moment, moment, moment, 30 * time.Second}[rand.IntN(6)]))
			send(t, inner, syscall.SIGCONT)
			return moment
		},
	},
	{name: "the supervisor is stopped for good", do: sends(syscall.SIGSTOP, moment, "inner")},
	{name: "the outer init is stopped for good", do: sends(syscall.SIGSTOP, moment, "outer")},
	{name: "both inits are stopped for good", do: sends(syscall.SIGSTOP, moment, "inner", "outer")},
	{
		name: "the supervisor has no descriptors left",
		do: func(t *testing.T, _, inner int) time.Duration {
			limit(t, inner, unix.RLIMIT_NOFILE, uint64(rand.IntN(40)))
			return 4 * moment
		},
	},
	{
		name: "the outer init has no descriptors left",
		do: func(t *testing.T, outer, _ int) time.Duration {
			limit(t, outer, unix.RLIMIT_NOFILE, uint64(rand.IntN(10)))
			return moment
		},
	},
	{
		// The outer init cannot say anything then.
		name: "neither init has descriptors left, and the supervisor is killed", code: 101,
		do: func(t *testing.T, outer, inner int) time.Duration {
			limit(t, outer, unix.RLIMIT_NOFILE, uint64(rand.IntN(10)))
			limit(t, inner, unix.RLIMIT_NOFILE, uint64(rand.IntN(40)))
			time.Sleep(moment)
			send(t, inner, syscall.SIGKILL)
			return 0
		},
	},
	{
		name: "the supervisor has no memory left",
		do: func(t *testing.T, _, inner int) time.Duration {
			kib, _ := rig.Memory(inner, "VmSize")
			limit(t, inner, unix.RLIMIT_AS, uint64(kib)<<10+uint64(rand.IntN(1<<20)))
			return 4 * moment
		},
	},
	{
		name: "the outer init has no memory left", aborts: true,
		do: func(t *testing.T, outer, _ int) time.Duration {
			kib, _ := rig.Memory(outer, "VmSize")
			limit(t, outer, unix.RLIMIT_AS, uint64(kib)<<10)
			return moment
		},
	},
}

// limit sets a limit of another process, as that process's user: for another user even root needs
// a capability that a container may lack.
func limit(t *testing.T, pid, resource int, value uint64) {
	t.Helper()
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, found := bytes.Cut(status, []byte("\nUid:"))
	var uid uintptr
	if _, err := fmt.Sscan(string(rest), &uid); err != nil || !found {
		return // it is gone
	}
	// The thread must not end: programs that it has started would end with it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	become := func(id uintptr) {
		_, _, err1 := unix.RawSyscall(unix.SYS_SETRESGID, id, id, 0)
		_, _, err2 := unix.RawSyscall(unix.SYS_SETRESUID, id, id, 0)
		if err1 != 0 || err2 != 0 {
			panic(fmt.Sprint("changing the user of a thread: ", err1, err2))
		}
	}
	if os.Getuid() == 0 {
		become(uid)
		defer become(0)
	}
	if err := unix.Prlimit(pid, resource, &unix.Rlimit{Cur: value, Max: value}, nil); err != nil && err != unix.ESRCH {
		t.Error(err)
	}
}

// TestKills: whatever becomes of the inits of a command that writes, at whatever moment, the
// command writes nothing that it must not, all of it ends, and whoever has started it is told.
func TestKills(t *testing.T) {
	t.Parallel()
	p := install(t)
	for i, uid := range users() {
		for j, m := range []mode{workspace, denying} {
			t.Run(fmt.Sprint(m, " uid ", uid), func(t *testing.T) {
				t.Parallel()
				k := &killing{agent: startAgent(t, p, supervised, uid), ground: ground{base: openDir(t), uid: uid, mode: m}}
				k.fill(t)
				for range hunting(1, 1, 1000/len(faults)/2/len(users())+1) {
					for n, f := range faults {
						if !inTurn(n+i+j) || f.slow && hunting(true, false, false) {
							continue
						}
						t.Run(f.name, func(t *testing.T) { k.round(t, f) })
						if t.Failed() && *flagHunt {
							return
						}
					}
				}
			})
		}
	}
}

type killing struct {
	*agent
	ground
}

func (k *killing) round(t *testing.T, f fault) {
	rig.Must(t, k.reset())
	before, err := k.tree()
	rig.Must(t, err)
	c := k.agent.start(t, k.ground, "job", k.base, "1000000000")
	terminated := false
	var late *time.Timer
	var terminating sync.WaitGroup
	end := c.finish(t, func() {
		outer, inner := k.inits()
		if inner == 0 {
			t.Fatalf("the inits of the command are %d and %d", outer, inner)
		}
		time.Sleep(rand.N(20 * time.Millisecond)) // any moment will do
		if wait := f.do(t, outer, inner); wait > 0 {
			terminated = true
			terminating.Add(1)
			late = time.AfterFunc(wait, func() {
				defer terminating.Done()
				rig.Check(t, c.Terminate(t.Context()))
			})
		}
	})
	if late != nil && late.Stop() {
		terminating.Done() // it has ended by itself before
	}
	terminating.Wait()
	told := fmt.Sprintf("code %d, stdout %q, stderr %q", end.code, end.stdout, end.stderr)
	if strings.Contains(end.stdout, "ESCAPED") {
		t.Errorf("it has written what it must not: %s", told)
	}
	right, says := false, ""
	switch end.code {
	case f.code:
		right, says = true, f.says
	case 134: // SIGABRT, of a runtime that has no memory
		right = f.aborts
	case 137: // terminated, or ended by a fault whose code is -1
		right = terminated || f.code < 0
	case 101:
		right, says = true, "sandbox: "
	}
	if !right || !strings.Contains(end.stderr, says) {
		t.Errorf("it has ended in another way, or nobody has said why: %s", told)
	}
	c.gone(t)
	k.unchanged(t, before)
}

// TestOthersLive: agent sandbox may be executed by a process that has children, and its end is
// not theirs.
func TestOthersLive(t *testing.T) {
	t.Parallel()
	p := install(t)
	g := ground{base: openDir(t), uid: os.Getuid(), mode: workspace}
	g.fill(t)
	cmd := g.command(t, p, supervised, "work", "0", g.base, "1")
	cmd.Args = slices.Concat([]string{"sh", "-c", `sleep 1000 > /dev/null 2>&1 & echo $!; exec "$@"`, "sh"}, cmd.Args)
	cmd.Path = "/bin/sh"
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	pid := rig.Value(strconv.Atoi(strings.TrimSpace(string(out))))
	rig.Is(t, syscall.Kill(pid, syscall.SIGKILL), nil, "another child of the process that became the agent")
}
