// Package usernotify speaks to the listener of a seccomp filter: it receives system calls that wait
// for an answer, and answers them (seccomp_unotify(2)). It does not know the meaning of a call or
// whether it is allowed. All functions may be called concurrently. Linux only.
package usernotify

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Call is a system call that waits for an answer. It has the layout of struct seccomp_notif.
type Call struct {
	ID     uint64 // for the answers, and for Valid
	Thread uint32 // the thread that made the call, by its number in the pid namespace of this process
	_      uint32
	// struct seccomp_data
	Number  int32
	Arch    uint32
	Pointer uint64 // to the next instruction
	Args    [6]uint64
}

// response is the answer to a call. It has the layout of struct seccomp_notif_resp.
type response struct {
	id    uint64
	val   int64
	error int32
	flags uint32
}

// Receive waits for a call, and stores it in call. The error is an errno: ENOENT if the calling
// thread has ended meanwhile, EINTR if a signal arrived.
func Receive(listener int, call *Call) error {
	*call = Call{} // the kernel refuses a struct that is not zero
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(call)))
	if errno != 0 {
		return errno
	}
	return nil
}

// WakeHere makes a call wake its receiver on the caller's CPU, where the caller sleeps until the
// answer. The answer wakes the caller on the CPU of the answering thread. In a virtual machine,
// waking an idle CPU can take ten times as long. Linux before 6.6 does not support this, and
// nothing changes there.
func WakeHere(listener int) {
	_, _, _ = syscall.RawSyscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SET_FLAGS, unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP)
}

// Valid reports whether the thread that made the call still waits for its answer.
func Valid(listener int, id uint64) bool {
	_, _, errno := syscall.RawSyscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_ID_VALID, uintptr(unsafe.Pointer(&id)))
	return errno == 0
}

// Respond ends a call with errno, or with success if errno is 0. Errors are ignored, because the
// thread that made the call may be gone.
func Respond(listener int, id uint64, errno syscall.Errno) {
	_ = send(listener, &response{id: id, error: -int32(errno)})
}

// Return ends a call with success and the return value.
func Return(listener int, id uint64, value int64) {
	_ = send(listener, &response{id: id, val: value})
}

// Continue makes the kernel execute the call. The kernel reads the arguments behind pointers again,
// so the calling process may have changed them since they were checked. The error is ENOENT if the
// thread that made the call is gone.
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

// HungUp waits until a call can be received, or until no process with the filter of listener is
// left. It returns true in the second case, and also if it cannot wait.
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
