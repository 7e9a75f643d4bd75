package helper

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

// dropCapabilities takes all capabilities from the calling thread for good,
// and those it holds from all others, whose bounding sets stay: what they execute
// goes through withoutPrivileges.
//
// capabilities(7)
func dropCapabilities() error {
	runtime.LockOSThread() // in case of a build with cgo, see below
	defer runtime.UnlockOSThread()
	if err := dropBounding(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("dropping ambient capabilities: %w", os.NewSyscallError("prctl", err))
	}
	header, none := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none[0])), 0)
	if errno == unix.ENOTSUP {
		// A build with cgo, as for the race detector. psx looks for threads in
		// /proc, which the view may hide; and only this thread starts the
		// command.
		return dropThread()
	}
	if errno != 0 {
		return fmt.Errorf("dropping capabilities: %w", os.NewSyscallError("capset", errno))
	}
	return checkCapabilities()
}

// dropThread takes the capabilities that it holds from the calling thread.
func dropThread() error {
	header, none := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	if err := unix.Capset(&header, &none[0]); err != nil {
		return fmt.Errorf("dropping capabilities: %w", os.NewSyscallError("capset", err))
	}
	return checkCapabilities()
}

// dropBounding empties the bounding set. Without the capability for that it
// stays, and no_new_privs keeps programs from getting any of it.
func dropBounding() error {
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

// capability tells whether the calling thread can use c.
func capability(c uint) (bool, error) {
	sets, err := capabilities()
	return sets[c/32].Effective&(1<<(c%32)) != 0, err
}

func capabilities() (sets [2]unix.CapUserData, err error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return sets, fmt.Errorf("looking at capabilities: %w", os.NewSyscallError("capget", err))
	}
	return sets, nil
}

// checkCapabilities makes sure that the calling thread has none.
func checkCapabilities() error {
	sets, err := capabilities()
	if err == nil && sets != [2]unix.CapUserData{} {
		err = errors.New("dropping capabilities: some are left")
	}
	return err
}
