package enforce

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ownPID stands in FilterHelper for the process that loads the filter, the only
// one that this process may signal then. The table of the helper has the same
// number; TestFilterWants finds it in the programs.
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
	// The synchronisation gives the other threads no_new_privs as well.
	thread, err := f.load(unix.SECCOMP_FILTER_FLAG_TSYNC)
	if err != nil {
		return err
	}
	if thread != 0 {
		return fmt.Errorf("loading filter %q: thread %d has other filters", f, thread)
	}
	return nil
}

// LoadThread sets no_new_privs and loads the filter for the calling thread, to
// which the caller must be locked, and what it forks or executes.
func (f Filter) LoadThread() error {
	if err := setNoNewPrivs(); err != nil {
		return err
	}
	_, err := f.load(0)
	return err
}

// LoadNotify is LoadThread for a filter that leaves calls to a listener, a
// descriptor that belongs to the caller. Such a call waits until it is answered
// there, and fails with ENOSYS once the listener is closed.
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

// load returns what seccomp(2) did: a thread, a descriptor or 0.
func (f Filter) load(flags uint) (int, error) {
	program, err := f.program()
	if err != nil {
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

// putPID puts the process's id where the program has ownPID.
func putPID(program []unix.SockFilter, pid uint32) {
	for i := range program {
		if program[i].Code == unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K && program[i].K == ownPID {
			program[i].K = pid
		}
	}
}

// setNoNewPrivs is for the calling thread.
func setNoNewPrivs() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	return nil
}
