package execcheck

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Events of a traced thread, in the upper half of its wait status (ptrace(2)).
const (
	eventExec = unix.PTRACE_EVENT_EXEC
	eventStop = unix.PTRACE_EVENT_STOP
)

// ptrace makes a ptrace request. All requests about a thread, and all waits for it,
// have to come from the thread of this process that has seized it.
func ptrace(request, tid int, data uintptr) error {
	_, _, errno := syscall.RawSyscall6(unix.SYS_PTRACE, uintptr(request), uintptr(tid), 0, data, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// seize begins to trace a thread without stopping it. If the tracer dies the
// thread is killed: nobody would look at the program that it executes.
func seize(tid int) error {
	return ptrace(unix.PTRACE_SEIZE, tid, unix.PTRACE_O_TRACEEXEC|unix.PTRACE_O_EXITKILL)
}

// interrupt marks a traced thread to stop, at the latest before it returns to its
// program. A thread that waits for the answer to a call goes on waiting.
func interrupt(tid int) error { return ptrace(unix.PTRACE_INTERRUPT, tid, 0) }

// detach lets a stopped thread go, with a signal if that is not 0.
func detach(tid int, signal unix.Signal) error {
	return ptrace(unix.PTRACE_DETACH, tid, uintptr(signal))
}

// siginfo is the head of siginfo_t as waitid(2) fills it in, on 64-bit Linux.
type siginfo struct {
	_, _, code, _ int32
	pid           int32
}

// Codes of siginfo, sigaction(2).
const (
	cldExited  = 1
	cldKilled  = 2
	cldDumped  = 3
	cldTrapped = 4
)

// peek waits until the thread that the calling one traces stops or ends. It leaves
// the event for whoever waits next.
func peek() (pid int, ended bool, err error) {
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WSTOPPED|unix.WNOWAIT|unix.WALL|unix.WNOTHREAD, nil)
		if err == unix.EINTR {
			continue
		}
		head := (*siginfo)(unsafe.Pointer(&info))
		return int(head.pid), head.code == cldExited || head.code == cldKilled || head.code == cldDumped, err
	}
}

// take takes the event of a traced thread that peek has seen.
func take(pid int) (status unix.WaitStatus, err error) {
	for {
		_, err = unix.Wait4(pid, &status, unix.WALL|unix.WNOTHREAD, nil)
		if err != unix.EINTR {
			return status, err
		}
	}
}
