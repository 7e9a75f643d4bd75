package files

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/internal/pack"
	"github.com/execagent/execagent/internal/sandbox/enforce"
	"github.com/execagent/execagent/sandbox"
)

// Main is the fs helper: it confines this process to the policy on
// descriptor 3 and serves file requests on descriptor 0 until the agent closes
// the other end. It returns the exit status. Main calls it first of all.
//
// The steps, in this order: each says why it is where it is. When one fails,
// the agent is told, and nothing is served.
func Main() int {
	// A setting of its own also stops the runtime from looking after the limits
	// of its cgroup, which it does through a descriptor that goes in the next
	// step. Two: one request must not wait for the collector or another.
	runtime.GOMAXPROCS(2)
	runtime.LockOSThread() // the main thread is the one that procfs shows
	view, layers, err := confine()
	runtime.UnlockOSThread()
	if err != nil {
		s := server{socket: serverSocket}
		s.send(pack.AppendString(appendAnswer(nil, 0, statusRefused), clip(err.Error(), maxText)))
		return 1
	}
	s := &server{socket: serverSocket, view: view}
	if err := s.send(encodeReady(layers)); err != nil {
		return 1 // the agent has gone
	}
	return s.serve()
}

// Descriptors that a helper starts with.
const (
	serverSocket = 0 // and 1
	setupFile    = 3
)

// confine gives up, for good, what serving under the policy does not need. It
// returns the layers that hold.
func confine() (*fsops.View, []string, error) {
	// First, so that nothing the agent leaked is ever within reach.
	if err := closeStray(); err != nil {
		return nil, nil, err
	}
	// Before the ruleset, which is made of it.
	encoded, err := readAll(setupFile, maxSetup)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the setup: %w", err)
	}
	setup, err := decodeSetup(encoded)
	if err != nil {
		return nil, nil, err
	}
	// The agent passes no environment, but somebody else who starts this binary might.
	os.Clearenv()
	// From here on only processes with CAP_SYS_PTRACE can look into this one, and
	// it leaves no core.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return nil, nil, fmt.Errorf("becoming non-dumpable: %w", err)
	}
	if err := limitResources(); err != nil {
		return nil, nil, err
	}
	// Opens the root and procfs, which the ruleset need not allow.
	view, err := newView(setup.policy, append(setup.hidden, os.Getpid())...)
	if err != nil {
		return nil, nil, fmt.Errorf("opening the view: %w", err)
	}
	// Before Landlock and the filter, which allow no way back; and while
	// CAP_SETPCAP is still there to empty the bounding set.
	if err := dropEverywhere(); err != nil {
		return nil, nil, err
	}
	layers, err := restrict(setup.policy)
	return view, layers, err
}

// closeStray closes every descriptor but those of the helper's own. It takes
// away that of the runtime for its cgroup too.
func closeStray() error {
	if err := unix.CloseRange(setupFile+1, ^uint(0)>>32, 0); err != nil {
		return fmt.Errorf("closing stray descriptors: %w", err)
	}
	return nil
}

// Limits of a helper; sandbox.md 16. There is none on CPU time: a helper that
// lives for long uses up any. Nor on the size of files: it copies larger ones
// than it reads. Nor on open files but the user's: with one below that of commands
// it could send none while they have as many under way (reserveDescriptors).
const (
	// maxMemory is address space, in bytes, over what is mapped at the start:
	// the largest listing, twice.
	maxMemory = 4 << 30
)

func limitResources() error {
	mapped, err := mappedMemory()
	if err != nil {
		return err
	}
	for _, limit := range []struct {
		name     string
		resource int
		value    uint64
	}{
		{"core size", unix.RLIMIT_CORE, 0},
		{"open files", unix.RLIMIT_NOFILE, math.MaxUint64},
		{"address space", unix.RLIMIT_AS, mapped + maxMemory},
	} {
		var old unix.Rlimit
		if err := unix.Getrlimit(limit.resource, &old); err != nil {
			return fmt.Errorf("reading the limit of %s: %w", limit.name, err)
		}
		value := min(limit.value, old.Max) // the agent may run with less
		if err := unix.Setrlimit(limit.resource, &unix.Rlimit{Cur: value, Max: value}); err != nil {
			return fmt.Errorf("limiting %s: %w", limit.name, err)
		}
	}
	return nil
}

// mappedMemory is the size of the address space that is in use, in bytes. The
// race detector, for one, reserves more than any limit.
func mappedMemory() (uint64, error) {
	fd, err := unix.Open("/proc/self/statm", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	var statm []byte
	if err == nil {
		statm, err = readAll(fd, 1<<10)
	}
	var pages uint64
	if err == nil {
		size, _, _ := strings.Cut(string(statm), " ")
		pages, err = strconv.ParseUint(size, 10, 64)
	}
	if err != nil {
		return 0, fmt.Errorf("reading the size of the address space: %w", err)
	}
	return pages * uint64(os.Getpagesize()), nil
}

// readAll returns the contents of fd, which it closes. An os.File would leave
// the runtime's network poller behind, with two descriptors.
func readAll(fd, limit int) ([]byte, error) {
	defer unix.Close(fd)
	data := make([]byte, 0, 4096)
	for {
		n, err := unix.Pread(fd, data[len(data):cap(data)], int64(len(data)))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil || n == 0:
			return data, err
		}
		if data = data[:len(data)+n]; len(data) > limit {
			return nil, fmt.Errorf("more than %d bytes", limit)
		}
		data = slices.Grow(data, 1)
	}
}

// dropEverywhere empties the capability sets of all threads. The bounding set,
// which only matters to what is executed, is emptied on this thread alone: the
// filter lets no thread execute anything, and every call on all threads stops
// the process for as long as a request takes.
func dropEverywhere() error {
	if err := linux.DropBoundingCaps(); err != nil {
		return err
	}
	if err := allThreads("clearing ambient capabilities", unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0); err != nil {
		return err
	}
	header, none := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	err := allThreads("dropping capabilities", unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none[0])), 0)
	runtime.KeepAlive(&header)
	runtime.KeepAlive(&none)
	if err != nil {
		return err
	}
	return linux.CheckCaps()
}

// allThreads makes a system call on every thread, also on those that cgo made:
// a build for the race detector has some.
func allThreads(step string, call, a, b, c uintptr) error {
	if _, _, errno := psx.Syscall6(call, a, b, c, 0, 0, 0); errno != 0 {
		return fmt.Errorf("%s on all threads: %w", step, errno)
	}
	return nil
}

// landlockLayer and seccompLayer are layers that a helper reports.
const (
	landlockLayer = "landlock:"
	seccompLayer  = "seccomp"
)

func isLandlock(layer string) bool { return strings.HasPrefix(layer, landlockLayer) }

// restrict has the kernel bound what a mistake in this program can do: Landlock
// where there is one, and the system call filter, without which nothing is
// served (sandbox.md 15).
func restrict(p *sandbox.Policy) (layers []string, err error) {
	if abi := enforce.LandlockABI(); abi > 0 {
		if err := enforce.RestrictProcess(p.HelperRuleset(abi)); err != nil {
			return nil, err
		}
		// Before the filter, which would end the process for trying.
		if err := checkRefused(p, abi); err != nil {
			return nil, err
		}
		layers = append(layers, fmt.Sprint(landlockLayer, abi))
	}
	debug.SetGCPercent(gcPercent)
	// Last, because it forbids all of the above.
	if err := enforce.FilterHelper.LoadProcess(); err != nil {
		return nil, err
	}
	return append(layers, seccompLayer), nil
}

// checkRefused tries what the ruleset must refuse.
func checkRefused(p *sandbox.Policy, abi int) error {
	if abi >= 6 {
		// Scoped signals reach no process outside, whatever user it belongs to.
		switch err := unix.Kill(os.Getppid(), 0); err {
		case unix.EPERM:
		case nil:
			return errors.New("landlock does not hold: the agent can be sent signals")
		default:
			return fmt.Errorf("trying whether landlock holds: %w", os.NewSyscallError("kill", err))
		}
	}
	const own = "/proc/self/comm"
	if p.Access(own) == sandbox.Write {
		return nil
	}
	fd, err := unix.Open(own, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
		return fmt.Errorf("landlock does not hold: %s can be written", own)
	}
	return nil
}
