package enforce

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ownPID stands in the program of FilterHelper where load puts the id of the
// loading process, because a process under that filter may signal only itself. The
// table of the helper has the same number; TestFilterWants looks for it in the programs.
const ownPID = 0x5e1f91d0

// Listener says which calls a filter leaves to a listener.
type Listener int

const (
	NoListener Listener = iota // the filter has no listener
	AskedCalls                 // the calls that the filter's table leaves to a listener
	AskedExecs                 // these calls, if there are any, and every execve(2) and execveat(2)
)

// LoadProcess sets no_new_privs and loads the filter for all threads of this
// process. If one thread cannot take the filter, no thread does.
func (f Filter) LoadProcess() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	program, err := f.program()
	if err != nil {
		return err
	}
	// With this flag the kernel also sets no_new_privs for the other threads.
	thread, err := load(f, program, unix.SECCOMP_FILTER_FLAG_TSYNC)
	if err != nil {
		return err
	}
	if thread != 0 {
		return fmt.Errorf("loading filter %q: thread %d has other filters", f, thread)
	}
	return nil
}

// Load sets no_new_privs and loads the filter for the calling thread and for
// everything that this thread forks or executes. The caller must be locked to the thread.
//
// Without a listener Load returns 0. Otherwise it returns the listener, a descriptor that
// the caller has to close. A call waits until it is answered there, and fails with ENOSYS
// once the listener is closed. Only fatal signals interrupt a call that waits, which needs
// Linux 5.19; on an older kernel the error wraps EINVAL. A process can have only one
// listener: if a container engine or an outer sandbox has loaded one already, the error
// wraps EBUSY.
func (f Filter) Load(l Listener) (listener int, err error) {
	var flags uint
	if l != NoListener {
		flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	}
	program, err := f.programFor(l)
	if err != nil {
		return -1, err
	}
	return load(f, program, flags)
}

// load sets no_new_privs, loads the program of a filter, and returns what seccomp(2)
// returned: with FLAG_TSYNC a thread that could not take the filter or 0, with
// FLAG_NEW_LISTENER a descriptor, else 0.
func load(f Filter, program []unix.SockFilter, flags uint) (int, error) {
	if err := setNoNewPrivs(); err != nil {
		return -1, err
	}
	putPID(program, uint32(os.Getpid()))
	arg := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	// RawSyscall: once the filter is in force the runtime must not have to
	// tell other threads about this call.
	n, _, errno := syscall.RawSyscall(unix.SYS_SECCOMP,
		unix.SECCOMP_SET_MODE_FILTER, uintptr(flags), uintptr(unsafe.Pointer(&arg)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return -1, fmt.Errorf("loading filter %q: %w", f, errno)
	}
	return int(n), nil
}

// putPID replaces ownPID by pid wherever the program compares with it.
func putPID(program []unix.SockFilter, pid uint32) {
	for i := range program {
		if program[i].Code == unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K && program[i].K == ownPID {
			program[i].K = pid
		}
	}
}

// setNoNewPrivs sets no_new_privs for the calling thread, because otherwise the kernel
// lets only privileged users load filters and rulesets.
func setNoNewPrivs() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	return nil
}
