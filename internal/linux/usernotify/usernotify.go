// Package usernotify speaks to the listener of a seccomp filter: it receives
// system calls that wait for an answer, and answers them (seccomp_unotify(2)).
// It does not know what a call does or whether it is allowed. All functions may
// run at once. Linux only.
package usernotify

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Call is a system call that waits for an answer. It is laid out as struct
// seccomp_notif.
type Call struct {
	ID     uint64 // for the answers, and for Valid
	Thread uint32 // the one that made the call, as this process numbers it
	_      uint32
	// struct seccomp_data
	Number  int32
	Arch    uint32
	Pointer uint64 // to the next instruction
	Args    [6]uint64
}

// response answers a call. It is laid out as struct seccomp_notif_resp.
type response struct {
	id    uint64
	val   int64
	error int32
	flags uint32
}

// Receive waits for a call, which it puts into call. The error is an errno:
// ENOENT if the thread that made the call went away meanwhile, EINTR if a signal
// came.
func Receive(listener int, call *Call) error {
	*call = Call{} // the kernel refuses one that is not zero
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(call)))
	if errno != 0 {
		return errno
	}
	return nil
}

// WakeHere lets a call wake its receiver on the caller's CPU, where the caller sleeps
// until the answer, and the answer wakes the caller on the CPU of who answered. In a
// virtual machine it can take ten times as long to wake a CPU that is idle. Linux
// before 6.6 cannot do so, and nothing changes there.
func WakeHere(listener int) {
	_, _, _ = syscall.RawSyscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SET_FLAGS, unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP)
}

// Valid reports whether the thread that made the call still waits for its answer.
func Valid(listener int, id uint64) bool {
	_, _, errno := syscall.RawSyscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_ID_VALID, uintptr(unsafe.Pointer(&id)))
	return errno == 0
}

// Respond ends a call: with errno or, if that is 0, with success. Errors are
// ignored, since the thread that made the call may be gone.
func Respond(listener int, id uint64, errno syscall.Errno) {
	_ = send(listener, &response{id: id, error: -int32(errno)})
}

// Return ends a call with success and the value that it returns.
func Return(listener int, id uint64, value int64) {
	_ = send(listener, &response{id: id, val: value})
}

// Continue lets the kernel make the call. The kernel reads the arguments behind
// pointers again, so the caller may have changed them since somebody looked.
// The error is ENOENT if the thread that made the call is gone.
func Continue(listener int, id uint64) error {
	return send(listener, &response{id: id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE})
}

// send sends an answer. The call does not block.
func send(listener int, r *response) error {
	_, _, errno := syscall.RawSyscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(r)))
	if errno != 0 {
		return errno
	}
	return nil
}

// HungUp waits until a call can be received, or no process with the filter of
// listener is left, and returns true for the latter. If it cannot wait it
// returns true too.
func HungUp(listener int) bool {
	fds := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, -1)
		if err != unix.EINTR {
			return err != nil || fds[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
		}
	}
}

// Waiting reports whether a call can be received. Another thread may receive it first.
func Waiting(listener int) bool {
	fds := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1 && fds[0].Revents&unix.POLLIN != 0
}
