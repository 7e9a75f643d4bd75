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
// loading process: a process under that filter may signal only itself. The table
// of the helper has the same number; TestFilterWants finds it in the programs.
const ownPID = 0x5e1f91d0

// LoadProcess sets no_new_privs and loads the filter for all threads of this
// process. It is all or nothing: when one thread cannot take the filter, none
// does.
func (f Filter) LoadProcess() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := setNoNewPrivs(); err != nil {
		return err
	}
	// With this flag the kernel sets no_new_privs for the other threads, too.
	thread, err := f.load(unix.SECCOMP_FILTER_FLAG_TSYNC)
	if err != nil {
		return err
	}
	if thread != 0 {
		return fmt.Errorf("loading filter %q: thread %d has other filters", f, thread)
	}
	return nil
}

// LoadThread sets no_new_privs and loads the filter for the calling thread and
// all that this forks or executes. The caller must be locked to the thread.
func (f Filter) LoadThread() error {
	if err := setNoNewPrivs(); err != nil {
		return err
	}
	_, err := f.load(0)
	return err
}

// LoadNotify does what LoadThread does, for a filter that leaves some calls to a
// listener. The listener is a descriptor, which the caller has to close. A call
// waits until somebody answers it there, and fails with ENOSYS once the listener
// is closed.
//
// Only fatal signals interrupt a call that waits, which Linux 5.19 brought; on an
// older kernel the error wraps EINVAL. A process may have one listener; where a
// container engine or an outer sandbox has one already, the error wraps EBUSY.
func (f Filter) LoadNotify() (listener int, err error) {
	if err := setNoNewPrivs(); err != nil {
		return -1, err
	}
	return f.load(unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
}

// load returns what seccomp(2) returned: with FLAG_TSYNC a thread that could not
// take the filter or 0, with FLAG_NEW_LISTENER a descriptor, else 0.
func (f Filter) load(flags uint) (int, error) {
	program, err := f.program()
	if err != nil {
		return -1, err
	}
	return load(f, program, flags)
}

// load loads the program of a filter.
func load(f Filter, program []unix.SockFilter, flags uint) (int, error) {
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

// setNoNewPrivs sets no_new_privs for the calling thread: without that, the kernel
// lets no ordinary user load filters or rulesets.
func setNoNewPrivs() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	return nil
}
