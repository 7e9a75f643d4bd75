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
// the other end. It returns the exit status. The main function of the program must call it
// before anything else.
//
// The order of the steps matters; a comment at each step has the reason. If a step fails,
// the agent gets the error, and nothing is served.
func Main() int {
	// An explicit setting also stops the runtime from reading the limits of its cgroup.
	// The runtime reads them through a descriptor that the next step closes. The number is
	// two, because a request must not wait for the garbage collector or another request.
	runtime.GOMAXPROCS(2)
	runtime.LockOSThread() // because procfs shows the attributes of the main thread
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

// confine gives up, forever, all rights that serving under the policy does not need. It
// returns the view and the layers that are in force.
func confine() (*fsops.View, []string, error) {
	// First, so that a descriptor that the agent leaked is never within reach.
	if err := closeStray(); err != nil {
		return nil, nil, err
	}
	// Before the ruleset, which is derived from the setup.
	encoded, err := readAll(setupFile, maxSetup)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the setup: %w", err)
	}
	setup, err := decodeSetup(encoded)
	if err != nil {
		return nil, nil, err
	}
	// The agent passes no environment, but another program that starts this binary might.
	os.Clearenv()
	// From here on only processes with CAP_SYS_PTRACE can inspect this process, and
	// it leaves no core file.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return nil, nil, fmt.Errorf("becoming non-dumpable: %w", err)
	}
	if err := limitResources(); err != nil {
		return nil, nil, err
	}
	// Before the ruleset, because it opens the root and procfs, which the ruleset need not
	// allow.
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

// closeStray closes every descriptor that does not belong to the helper. One of them is the
// descriptor of the runtime for its cgroup.
func closeStray() error {
	if err := unix.CloseRange(setupFile+1, ^uint(0)>>32, 0); err != nil {
		return fmt.Errorf("closing stray descriptors: %w", err)
	}
	return nil
}

// Limits of a helper; sandbox.md 16. CPU time has no limit, because a long-lived helper
// would reach any. The size of files has no limit, because a helper may copy larger files
// than it reads. The limit of open files is raised to the user's hard limit. With a lower
// limit than commands have, a helper could pass no descriptors while commands have as many
// in flight (unix(7), ETOOMANYREFS; reserved of package confine).
const (
	// maxMemory is the address space, in bytes, that a helper may map in addition to the
	// mappings at its start. The largest listing fits twice.
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

// mappedMemory returns the size of the address space in use, in bytes. It is needed
// because the race detector, for example, reserves more address space than any limit.
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

// dropEverywhere empties the capability sets of all threads. It empties the bounding set
// of this thread only, because that set only matters to execve(2), which the filter allows
// to no thread. Each system call on all threads stops the process for as long as a request
// takes.
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

// allThreads makes a system call on every thread, also on the threads that cgo made, because
// a build for the race detector has such threads.
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

// restrict has the kernel bound the damage of a mistake in this program (sandbox.md 15). It
// applies Landlock if the kernel has it, and the system call filter. Without the filter
// nothing is served.
func restrict(p *sandbox.Policy) (layers []string, err error) {
	if abi := enforce.LandlockABI(); abi > 0 {
		if err := enforce.RestrictProcess(p.HelperRuleset(abi)); err != nil {
			return nil, err
		}
		// Before the filter, which kills the process for these calls.
		if err := checkRefused(p, abi); err != nil {
			return nil, err
		}
		layers = append(layers, fmt.Sprint(landlockLayer, abi))
	}
	debug.SetGCPercent(gcPercent)
	// Last, because the filter forbids all of the steps above.
	if err := enforce.FilterHelper.LoadProcess(); err != nil {
		return nil, err
	}
	return append(layers, seccompLayer), nil
}

// checkRefused tries actions that the ruleset must refuse.
func checkRefused(p *sandbox.Policy, abi int) error {
	if abi >= 6 {
		// Scoped signals reach no process outside of the domain, whatever its user.
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
