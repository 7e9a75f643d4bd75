// Package thread takes from a thread of another process what that process, or the kernel on its
// behalf, knows: a descriptor, a piece of memory, a line of its status. The number of a thread that
// has ended can be another one's: whoever asks makes sure that it still is. Linux only.
package thread

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Duplicate returns a descriptor of its own for what fd of the thread is.
func Duplicate(thread, fd int) (int, error) {
	const ofThread = unix.O_EXCL // PIDFD_THREAD, Linux 6.9
	pidfd, err := unix.PidfdOpen(thread, ofThread)
	if err == unix.EINVAL {
		// Threads nearly always share their descriptors. If not, this is
		// another one of the same program, and judged as such.
		var leader int
		if leader, err = leaderOf(thread); err == nil {
			pidfd, err = unix.PidfdOpen(leader, 0)
		}
	}
	if err != nil {
		return -1, err
	}
	defer unix.Close(pidfd)
	socket, err := unix.PidfdGetfd(pidfd, fd, 0)
	return socket, err
}

// leaderOf is the process that a thread belongs to.
func leaderOf(thread int) (pid int, err error) { return Status(thread, "Tgid", 10) }

// Status returns a number that the kernel tells of the thread, by the name of its line;
// proc_pid_status(5).
func Status(thread int, name string, base int) (int, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", thread))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(status), "\n"+name+":")
	line, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.ParseInt(strings.TrimSpace(line), base, 32)
	if err != nil {
		return 0, unix.ESRCH
	}
	return int(n), nil
}

// Memory returns a copy of n bytes at addr of the thread.
func Memory(thread int, addr uint64, n int) ([]byte, error) {
	b := make([]byte, n)
	if n == 0 {
		return b, nil
	}
	local := unix.Iovec{Base: &b[0]}
	local.SetLen(n)
	got, err := unix.ProcessVMReadv(thread, []unix.Iovec{local}, []unix.RemoteIovec{{Base: uintptr(addr), Len: n}}, 0)
	if err != nil {
		return nil, err
	}
	if got != n {
		return nil, unix.EFAULT
	}
	return b, nil
}
