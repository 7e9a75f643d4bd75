package enforce

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/test/rig"
)

// try is a system call, with arguments that no kernel accepts: if the filter lets
// the call through, it does nothing.
type try struct {
	name   string
	number uintptr
	args   [6]uintptr
	want   unix.Errno
}

// nowhere is an address that is not mapped, and a descriptor that is not open.
const nowhere = ^uintptr(0) - 4095

// kernelTries has the calls that are tried under each filter.
var kernelTries = map[Filter][]try{
	FilterRestricted: append(refused, offline...),
	FilterEnabled:    append(refused, online...),
	FilterLandlock: append(append([]try{
		{"fchmod", unix.SYS_FCHMOD, [6]uintptr{nowhere}, unix.EROFS},
		{"fsetxattr", unix.SYS_FSETXATTR, [6]uintptr{nowhere}, unix.EROFS},
		{"fchmodat2", 452, [6]uintptr{nowhere, nowhere}, unix.EROFS},
		{"FS_IOC_SETFLAGS", unix.SYS_IOCTL, [6]uintptr{nowhere, unix.FS_IOC_SETFLAGS}, unix.EROFS},
		{"shmget", unix.SYS_SHMGET, [6]uintptr{}, unix.EPERM},
		{"prlimit64", unix.SYS_PRLIMIT64, [6]uintptr{1, nowhere, 1}, unix.EPERM},
	}, refused...), offline...),
	FilterNetwork: append([]try{
		{"setns", unix.SYS_SETNS, [6]uintptr{nowhere}, unix.EPERM},
		{"fchmod", unix.SYS_FCHMOD, [6]uintptr{nowhere}, unix.EBADF},
	}, offline...),
	FilterHiddenPaths: {
		{"listxattr", unix.SYS_LISTXATTR, [6]uintptr{nowhere}, unix.EACCES},
		{"inotify_add_watch", unix.SYS_INOTIFY_ADD_WATCH, [6]uintptr{nowhere, nowhere}, unix.EACCES},
		{"flistxattr", unix.SYS_FLISTXATTR, [6]uintptr{nowhere}, unix.EBADF},
	},
}

var (
	refused = []try{
		{"setns", unix.SYS_SETNS, [6]uintptr{nowhere}, unix.EPERM},
		{"mount", unix.SYS_MOUNT, [6]uintptr{nowhere, nowhere}, unix.EPERM},
		{"unshare", unix.SYS_UNSHARE, [6]uintptr{unix.CLONE_NEWUSER | 1<<63}, unix.EPERM},
		{"unshare nothing", unix.SYS_UNSHARE, [6]uintptr{}, 0},
		{"clone3", unix.SYS_CLONE3, [6]uintptr{}, unix.ENOSYS},
		{"statmount", unix.SYS_STATMOUNT, [6]uintptr{}, unix.ENOSYS},
		{"keyctl", unix.SYS_KEYCTL, [6]uintptr{nowhere}, unix.EPERM},
		{"personality", unix.SYS_PERSONALITY, [6]uintptr{0x0400000}, unix.EPERM},
		{"TIOCSTI", unix.SYS_IOCTL, [6]uintptr{nowhere, 1<<32 | unix.TIOCSTI}, unix.EPERM},
		{"KDSKBSENT", unix.SYS_IOCTL, [6]uintptr{nowhere, 1<<32 | 0x4b49}, unix.EPERM},
		{"TIOCGWINSZ", unix.SYS_IOCTL, [6]uintptr{nowhere, unix.TIOCGWINSZ}, unix.EBADF},
		{"BTRFS_IOC_SNAP_CREATE_V2", unix.SYS_IOCTL, [6]uintptr{nowhere, 0x50009417}, unix.EPERM},
		{"FICLONE", unix.SYS_IOCTL, [6]uintptr{nowhere, unix.FICLONE, nowhere}, unix.EBADF},
		{"F_SETLEASE", unix.SYS_FCNTL, [6]uintptr{nowhere, unix.F_SETLEASE}, unix.EPERM},
		{"F_SETDELEG", unix.SYS_FCNTL, [6]uintptr{nowhere, 1040}, unix.EPERM},
		{"F_GETFD", unix.SYS_FCNTL, [6]uintptr{nowhere, unix.F_GETFD}, unix.EBADF},
		{"sched_setparam", unix.SYS_SCHED_SETPARAM, [6]uintptr{1}, unix.EPERM},
		{"sched_setparam of itself", unix.SYS_SCHED_SETPARAM, [6]uintptr{}, unix.EINVAL},
		{"io_uring_setup", unix.SYS_IO_URING_SETUP, [6]uintptr{}, unix.EPERM},
		{"a call from the future", 500, [6]uintptr{}, unix.ENOSYS},
		{"an x32 call", x32Bit | 39, [6]uintptr{}, unix.ENOSYS},
	}
	offline = []try{
		{"inet socket", unix.SYS_SOCKET, [6]uintptr{unix.AF_INET, unix.SOCK_STREAM, 999}, unix.EPERM},
		{"unix datagram socket", unix.SYS_SOCKET, [6]uintptr{unix.AF_UNIX, unix.SOCK_DGRAM, 999}, unix.EPERM},
		{"unix stream socket", unix.SYS_SOCKET, [6]uintptr{unix.AF_UNIX, unix.SOCK_STREAM, 999}, unix.EPROTONOSUPPORT},
		{"connect", unix.SYS_CONNECT, [6]uintptr{nowhere}, unix.EPERM},
		{"getsockopt", unix.SYS_GETSOCKOPT, [6]uintptr{nowhere}, unix.EBADF},
		{"ptrace", unix.SYS_PTRACE, [6]uintptr{nowhere}, unix.EPERM},
		{"pidfd_getfd", unix.SYS_PIDFD_GETFD, [6]uintptr{nowhere}, unix.EPERM},
	}
	online = []try{
		{"vsock socket", unix.SYS_SOCKET, [6]uintptr{unix.AF_VSOCK, unix.SOCK_STREAM, 999}, unix.EPERM},
		{"unix datagram socket", unix.SYS_SOCKET, [6]uintptr{unix.AF_UNIX, unix.SOCK_DGRAM, 999}, unix.EPERM},
		{"inet socket", unix.SYS_SOCKET, [6]uintptr{unix.AF_INET, unix.SOCK_STREAM, 999}, unix.EINVAL},
		{"sendto, fast open", unix.SYS_SENDTO, [6]uintptr{nowhere, 0, 0, unix.MSG_FASTOPEN}, unix.EOPNOTSUPP},
		{"sendmsg, fast open", unix.SYS_SENDMSG, [6]uintptr{nowhere, nowhere, unix.MSG_FASTOPEN | unix.MSG_NOSIGNAL}, unix.EOPNOTSUPP},
		{"sendto", unix.SYS_SENDTO, [6]uintptr{nowhere}, unix.EBADF},
		{"kcmp", unix.SYS_KCMP, [6]uintptr{0, 0, nowhere}, unix.ESRCH},
	}
)

func TestFiltersInTheKernel(t *testing.T) {
	t.Parallel()
	for filter := range kernelTries {
		t.Run(string(filter), func(t *testing.T) {
			t.Parallel()
			sandboxtest.RunChild(t, "filter/process", string(filter))
		})
	}
}

// The child looks whether LoadProcess binds all threads, also those that existed
// before.
var _ = sandboxtest.RegisterChild("filter/process", func(t rig.T, args []string) {
	filter := Filter(args[0])
	var loaded, tried sync.WaitGroup
	failures := make(chan error, 8)
	loaded.Add(1)
	for range cap(failures) {
		ready := make(chan struct{})
		tried.Go(func() {
			runtime.LockOSThread()
			close(ready)
			loaded.Wait()
			failures <- tryAll(kernelTries[filter])
		})
		<-ready
	}
	err := filter.LoadProcess()
	loaded.Done()
	tried.Wait()
	close(failures)
	for failure := range failures {
		err = errors.Join(err, failure)
	}
	rig.Must(t, err, exec.Command("/proc/self/exe", sandboxtest.ChildArg, "filter/tries", args[0]).Run())
})

// This child is executed by the one above: it has to inherit the filter.
var _ = sandboxtest.RegisterChild("filter/tries", func(t rig.T, args []string) { rig.Must(t, tryAll(kernelTries[Filter(args[0])])) })

func tryAll(tries []try) error {
	for _, c := range tries {
		if runtime.GOARCH != "amd64" && c.number&x32Bit != 0 {
			continue
		}
		_, _, errno := unix.Syscall6(c.number, c.args[0], c.args[1], c.args[2], c.args[3], c.args[4], c.args[5])
		if errno != c.want {
			return fmt.Errorf("%s: %v, want %v", c.name, errno, c.want)
		}
	}
	return nil
}

// TestLoadThread: the filter is in force for one thread, and not for the others.
func TestLoadThread(t *testing.T) {
	t.Parallel()
	sandboxtest.RunChild(t, "filter/thread")
}

var _ = sandboxtest.RegisterChild("filter/thread", func(t rig.T, _ []string) {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with this func
		if _, err := FilterRestricted.Load(NoListener); err != nil {
			result <- err
			return
		}
		result <- tryAll(kernelTries[FilterRestricted])
	}()
	rig.Must(t, <-result, tryAll([]try{{"setns", unix.SYS_SETNS, [6]uintptr{nowhere}, unix.EBADF}}))
})

// seccompNotif and seccompAnswer are struct seccomp_notif and struct
// seccomp_notif_resp of linux/seccomp.h.
type (
	seccompNotif struct {
		id         uint64
		pid, flags uint32
		number     int32
		arch       uint32
		pointer    uint64
		args       [6]uint64
	}
	seccompAnswer struct {
		id    uint64
		value int64
		errno int32
		flags uint32
	}
)

// TestLoadNotify: connect waits for the listener's answer, and fails once the
// listener is closed.
func TestLoadNotify(t *testing.T) {
	t.Parallel()
	sandboxtest.RunChild(t, "filter/notify")
}

var _ = sandboxtest.RegisterChild("filter/notify", func(t rig.T, _ []string) {
	type loaded struct {
		listener int
		err      error
	}
	result, answers := make(chan loaded), make(chan unix.Errno)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with this func
		listener, err := FilterEnabled.Load(AskedCalls)
		result <- loaded{listener, err}
		if err != nil {
			return
		}
		for range 2 {
			_, _, errno := unix.Syscall(unix.SYS_CONNECT, nowhere, 0, 0)
			answers <- errno
		}
	}()
	got := <-result
	rig.Must(t, got.err)
	rig.Is(t, rig.Value(unix.FcntlInt(uintptr(got.listener), unix.F_GETFD, 0)), unix.FD_CLOEXEC, "the listener's flags")
	var asked seccompNotif
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(got.listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&asked))); errno != 0 {
		t.Fatalf("receiving: %v", errno)
	}
	rig.Is(t, asked.number, unix.SYS_CONNECT, "the call that is asked about")
	answer := seccompAnswer{id: asked.id, errno: -int32(unix.ENETDOWN)}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(got.listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&answer))); errno != 0 {
		t.Fatalf("answering: %v", errno)
	}
	rig.Is(t, <-answers, unix.ENETDOWN, "the answer")
	unix.Close(got.listener)
	rig.Is(t, <-answers, unix.ENOSYS, "without a listener")
})

// TestFilterHelperLives: under its filter the fs helper can do all it has to, on
// many threads, while garbage is collected and goroutines are preempted.
func TestFilterHelperLives(t *testing.T) {
	t.Parallel()
	sandboxtest.RunChild(t, "filter/helper", t.TempDir())
}

var _ = sandboxtest.RegisterChild("filter/helper", func(t rig.T, args []string) {
	pair := rig.Value(unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0))
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	rig.Must(t, FilterHelper.LoadProcess())
	workers, rounds := 20, 20 // each round makes ten calls and more
	if rig.Runs(rig.Merge) {
		rounds = 100
	}
	results := make(chan error, workers+2)
	for worker := range workers {
		go func() {
			for round := range rounds {
				if err := fileWork(filepath.Join(args[0], strconv.Itoa(worker)), round); err != nil {
					results <- err
					return
				}
			}
			results <- nil
		}()
	}
	go func() { // the runtime can preempt this loop only by a signal
		for start := time.Now(); time.Since(start) < 300*time.Millisecond; {
		}
		results <- nil
	}()
	go func() {
		for range 40 {
			runtime.GC()
			time.Sleep(time.Millisecond)
		}
		results <- nil
	}()
	for range 100 { // reads and writes that go through the runtime's poller
		_ = rig.Value(ours.Write([]byte("request")))
		rig.Is(t, rig.Value(theirs.Read(make([]byte, 100))), len("request"), "bytes read")
	}
	for range cap(results) {
		rig.Must(t, <-results)
	}
})

// fileWork does a round of the helper's file operations below dir.
func fileWork(dir string, round int) error {
	noise := make([]byte, 1<<12+round)
	if _, err := rand.Read(noise); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	fd := rig.Value(unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0))
	defer unix.Close(fd)
	file, err := unix.Openat2(fd, "a", &unix.OpenHow{Flags: unix.O_RDWR | unix.O_CREAT | unix.O_CLOEXEC, Mode: 0o600, Resolve: unix.RESOLVE_BENEATH})
	if err != nil {
		return err
	}
	defer unix.Close(file)
	_ = rig.Value(unix.Pwrite(file, noise, 0))
	var statx unix.Statx_t
	for _, step := range []func() error{
		func() error { return unix.Fchmod(file, 0o640) },
		func() error { return unix.Ftruncate(file, 100) },
		func() error { return unix.Statx(file, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS, &statx) },
		func() error { return unix.Symlinkat("a", fd, "b") },
		func() error { _, err := unix.Readlinkat(fd, "b", make([]byte, 10)); return err },
		func() error { return unix.Linkat(fd, "a", fd, "c", 0) },
		func() error { return unix.Renameat2(fd, "c", fd, "d", unix.RENAME_NOREPLACE) },
		func() error { return unix.Unlinkat(fd, "d", 0) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		return fmt.Errorf("%d entries, %w", len(entries), err)
	}
	return os.RemoveAll(dir)
}

// TestFilterHelperKills: a call that the fs helper must not make ends it.
func TestFilterHelperKills(t *testing.T) {
	t.Parallel()
	for name := range helperCrimes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := sandboxtest.ChildCommand(t, "filter/crime", name).CombinedOutput()
			exit, ok := errors.AsType[*exec.ExitError](err)
			if !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGSYS {
				t.Errorf("the child ended with %v, want SIGSYS\n%s", err, out)
			}
			rig.Is(t, strings.Contains(string(out), "survived"), false, "%s", out)
		})
	}
}

// helperCrimes are calls that the fs helper must not make, with arguments with
// which they do no harm if the filter lets them through.
var helperCrimes = map[string]func(){
	"socket": func() { _, _ = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 999) },
	"execve": func() { _ = unix.Exec("/nonexistent", nil, nil) },
	"fork":   func() { _, _ = syscall.ForkExec("/nonexistent", nil, &syscall.ProcAttr{}) },
	"ptrace": func() { _, _, _ = unix.Syscall(unix.SYS_PTRACE, nowhere, 0, 0) },
	"kill":   func() { _ = unix.Kill(os.Getpid(), 0) },
	"tgkill of another": func() {
		_, _, _ = unix.Syscall(unix.SYS_TGKILL, uintptr(os.Getppid()), uintptr(os.Getppid()), 0)
	},
	"executable memory": func() {
		_, _ = unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	},
}

var _ = sandboxtest.RegisterChild("filter/crime", func(t rig.T, args []string) {
	rig.Must(t, FilterHelper.LoadProcess())
	helperCrimes[args[0]]()
	t.Fatalf("survived")
})

// TestHoldsConnections: what is tried leaves no filter on the threads of this process.
func TestHoldsConnections(t *testing.T) {
	t.Parallel()
	before := rig.Value(os.ReadFile("/proc/self/status"))
	rig.Is(t, canListen() && (canTake() || LandlockABI() >= 6), HoldsConnections(), "the answer")
	after := rig.Value(os.ReadFile("/proc/self/status"))
	for _, member := range []string{"Seccomp:", "Seccomp_filters:", "NoNewPrivs:"} {
		_, was, _ := strings.Cut(string(before), member)
		_, is, _ := strings.Cut(string(after), member)
		was, _, _ = strings.Cut(was, "\n")
		is, _, _ = strings.Cut(is, "\n")
		rig.Is(t, is, was, "%s of this process", member)
	}
}
