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

// maxCapability is one more than the highest capability that there can be.
const maxCapability = 64

// DropCaps takes all capabilities away from the calling thread, with its bounding
// set, and those that they hold from all other threads.
//
// The other threads keep their bounding sets, so a program that one of them
// executes as uid 0 would get capabilities again. A thread that executes a
// program later sets no_new_privs and calls [DropThreadCaps] first.
//
// In a build with cgo the other threads keep their capabilities too.
func DropCaps() error {
	// All calls below have to hit one thread.
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
		// This is a build with cgo, as for the race detector: the runtime does
		// not know all threads. Package psx, which does this with cgo, finds
		// them in /proc, which the view may hide. So only this thread drops its
		// capabilities: it is the one that starts the command.
		return DropThreadCaps()
	}
	if errno != 0 {
		return fmt.Errorf("dropping capabilities: %w", os.NewSyscallError("capset", errno))
	}
	return CheckCaps()
}

// DropThreadCaps takes the capabilities of the calling thread away. Its bounding set
// stays.
func DropThreadCaps() error {
	header, none := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	if err := unix.Capset(&header, &none[0]); err != nil {
		return fmt.Errorf("dropping capabilities: %w", os.NewSyscallError("capset", err))
	}
	return CheckCaps()
}

// DropBoundingCaps empties the bounding set of the calling thread. If the thread
// lacks CAP_SETPCAP the set stays, which is no error: the caller sets
// no_new_privs, which keeps executed programs from getting anything out of it.
func DropBoundingCaps() error {
	may, err := capability(unix.CAP_SETPCAP)
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

// capability reports whether the calling thread has c in effect.
func capability(c uint) (bool, error) {
	sets, err := capabilities()
	return sets[c/32].Effective&(1<<(c%32)) != 0, err
}

// capabilities returns the sets of the calling thread: the first element has
// the capabilities 0 to 31, the second the others.
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
