package caps

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

// Drop takes all capabilities from the calling thread for good, and from all
// other threads those that they hold. The bounding sets of the others stay:
// what they execute has to be executed by a thread that went through
// [DropThread] with no_new_privs set. capabilities(7)
func Drop() error {
	runtime.LockOSThread() // in case of a build with cgo, see below
	defer runtime.UnlockOSThread()
	if err := DropBounding(); err != nil {
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
		return DropThread()
	}
	if errno != 0 {
		return fmt.Errorf("dropping capabilities: %w", os.NewSyscallError("capset", errno))
	}
	return Check()
}

// DropThread takes from the calling thread the capabilities that it holds.
func DropThread() error {
	header, none := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	if err := unix.Capset(&header, &none[0]); err != nil {
		return fmt.Errorf("dropping capabilities: %w", os.NewSyscallError("capset", err))
	}
	return Check()
}

// DropBounding empties the bounding set. Without the capability for that it
// stays, and no_new_privs keeps programs from getting any of it.
func DropBounding() error {
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

// Check makes sure that the calling thread has no capability.
func Check() error {
	sets, err := capabilities()
	if err == nil && sets != [2]unix.CapUserData{} {
		err = errors.New("dropping capabilities: some are left")
	}
	return err
}
