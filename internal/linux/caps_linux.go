package linux

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxCapability is one more than the highest possible capability.
const maxCapability = 64

// DropCaps drops all capabilities of the calling thread and its bounding set. It also drops the
// capabilities of all other threads.
//
// The other threads keep their bounding sets, so a program that one of them executes as uid 0 would
// get capabilities again. A thread that executes a program later must first set no_new_privs and
// call [DropThreadCaps].
//
// In a build with cgo the other threads keep their capabilities too.
func DropCaps() error {
	// All calls below must run on one thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := DropBoundingCaps(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("dropping ambient capabilities: %w", os.NewSyscallError("prctl", err))
	}
	header, none := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none[0])), 0)
	if errno == unix.ENOTSUP {
		// This is a build with cgo, as for the race detector: the runtime does not know all threads.
		// Package psx, which can do this with cgo, finds the threads in /proc, but the view may hide
		// /proc. So only this thread drops its capabilities, because it is the thread that starts the
		// command.
		return DropThreadCaps()
	}
	if errno != 0 {
		return fmt.Errorf("dropping capabilities: %w", os.NewSyscallError("capset", errno))
	}
	return CheckCaps()
}

// DropThreadCaps drops the capabilities of the calling thread. Its bounding set stays.
func DropThreadCaps() error {
	header, none := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	if err := unix.Capset(&header, &none[0]); err != nil {
		return fmt.Errorf("dropping capabilities: %w", os.NewSyscallError("capset", err))
	}
	return CheckCaps()
}

// DropBoundingCaps empties the bounding set of the calling thread. If the thread lacks CAP_SETPCAP,
// the set stays. This is not an error, because the caller sets no_new_privs, and then executed
// programs cannot get capabilities from the set.
func DropBoundingCaps() error {
	may, err := Capable(unix.CAP_SETPCAP)
	if err != nil || !may {
		return err
	}
	for c := range uintptr(maxCapability) {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if err == unix.EINVAL { // the kernel has no more
			return nil
		}
		if err != nil {
			return fmt.Errorf("dropping capability %d from the bounding set: %w", c, os.NewSyscallError("prctl", err))
		}
	}
	return nil
}

// Capable reports whether the calling thread has the effective capability c.
func Capable(c uint) (bool, error) {
	sets, err := capabilities()
	return sets[c/32].Effective&(1<<(c%32)) != 0, err
}

// capabilities returns the capability sets of the calling thread: the first element has the
// capabilities 0 to 31, the second the others.
func capabilities() (sets [2]unix.CapUserData, err error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return sets, fmt.Errorf("looking at capabilities: %w", os.NewSyscallError("capget", err))
	}
	return sets, nil
}

// CheckCaps returns an error if the calling thread holds a capability. It does not
// look at the bounding set.
func CheckCaps() error {
	sets, err := capabilities()
	if err == nil && sets != [2]unix.CapUserData{} {
		err = errors.New("dropping capabilities: some are left")
	}
	return err
}
