package execcheck

import (
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
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
//
// It may have to wait for a lock of the thread's process, so the runtime has to
// know that it is in a system call.
func seize(tid int) error {
	_, _, errno := syscall.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(tid), 0, unix.PTRACE_O_TRACEEXEC|unix.PTRACE_O_EXITKILL, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// interrupt marks a traced thread to stop, at the latest before it returns to its
// program. A thread that waits for the answer to a call goes on waiting.
func interrupt(tid int) error { return ptrace(unix.PTRACE_INTERRUPT, tid, 0) }

// detach lets a stopped thread go, with a signal if that is not 0.
func detach(tid int, signal unix.Signal) error {
	return ptrace(unix.PTRACE_DETACH, tid, uintptr(signal))
}

// sighting is what waitid(2) shows of a child or of a traced thread.
type sighting struct {
	pid   int
	ended bool
	// stop is why a traced thread has stopped: a signal, and above it the event.
	stop int
}

// event returns the event of a stop, 0 if there is none.
func (s sighting) event() int { return s.stop >> 8 }

// signal returns the signal of a stop.
func (s sighting) signal() unix.Signal { return unix.Signal(s.stop & 0xff) }

// look waits for what the options name, and leaves it as it is: whoever waits next
// sees it too.
func look(kind, pid, options int) (sighting, error) {
	// The head of siginfo_t as waitid(2) fills it in, on 64-bit Linux.
	type siginfo struct {
		_, _, code, _ int32
		pid           int32
		_             uint32
		status        int32
	}
	// Codes of siginfo, sigaction(2).
	const exited, killed, dumped = 1, 2, 3
	var info unix.Siginfo
	if err := waitid(kind, pid, &info, options|unix.WEXITED|unix.WNOWAIT); err != nil {
		return sighting{}, err
	}
	head := (*siginfo)(unsafe.Pointer(&info))
	s := sighting{pid: int(head.pid)}
	if s.ended = head.code == exited || head.code == killed || head.code == dumped; !s.ended {
		s.stop = int(head.status)
	}
	return s, nil
}

func waitid(kind, pid int, info *unix.Siginfo, options int) error {
	for {
		if err := unix.Waitid(kind, pid, info, options, nil); err != unix.EINTR {
			return os.NewSyscallError("waitid", err)
		}
	}
}

// traced waits until the thread that the calling one traces stops or ends. A
// thread that traces has no children, so nothing else is seen. It takes a stop:
// the kernel lets nobody go on with a thread that has changed its number before
// that was waited for. It leaves an end, which belongs to the parent.
//
// These are two calls. A single wait4(2) would take the end too if the thread were
// killed before it, and the parent might then never learn of it.
func traced() (sighting, error) {
	s, err := look(unix.P_ALL, 0, unix.WSTOPPED|unix.WALL|unix.WNOTHREAD)
	if err == nil && !s.ended {
		// If the thread was killed meanwhile this takes nothing.
		err = waitid(unix.P_PID, s.pid, nil, unix.WSTOPPED|unix.WNOHANG|unix.WALL|unix.WNOTHREAD)
	}
	return s, err
}

// release gives up a traced thread that has ended: its parent learns of that now.
func release(tid int) {
	for {
		if _, err := unix.Wait4(tid, nil, unix.WALL|unix.WNOTHREAD, nil); err != unix.EINTR {
			return
		}
	}
}
