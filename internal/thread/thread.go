// Package thread takes a copy of something that a thread of another process
// has: a descriptor, a piece of its memory, a number from its status. For the
// first two this process has to be allowed to trace that one (ptrace(2)). All
// functions may run at once. Linux only.
//
// A thread is named by its number. Once a thread has ended the kernel may give
// its number to another one, so the caller makes sure that the thread was there
// all the time before it uses what it got.
package thread

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Duplicate returns a new descriptor of this process for the open file that fd
// is in the thread. The caller closes it.
func Duplicate(thread, fd int) (int, error) {
	const ofThread = unix.O_EXCL // PIDFD_THREAD, Linux 6.9
	pidfd, err := unix.PidfdOpen(thread, ofThread)
	if err == unix.EINVAL {
		// An older kernel opens processes only. The threads of a process nearly
		// always share their descriptors. If this one does not, fd is another
		// file of the same program, and the caller judges that one.
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

// leaderOf returns the process that a thread belongs to.
func leaderOf(thread int) (pid int, err error) { return Status(thread, "Tgid", 10) }

// Status returns the number, written in base, that the line name of the
// thread's /proc/PID/status has; proc_pid_status(5). If there is no such number
// the error is ESRCH.
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

// Memory returns a copy of the n bytes at addr in the memory of the thread. If
// some of them cannot be read the error is EFAULT.
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
