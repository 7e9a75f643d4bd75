// Package usernotify speaks to the listener of a seccomp filter: it receives system calls that wait
// for an answer, and answers them, seccomp_unotify(2). What a call is about, and whether it may be
// done, is not its matter. All functions may run at once. Linux only.
package usernotify

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Call is a system call that waits for an answer: struct
// seccomp_notif.
type Call struct {
	ID     uint64
	Thread uint32 // as this process numbers it
	_      uint32
	// struct seccomp_data
	Number  int32
	Arch    uint32
	Pointer uint64
	Args    [6]uint64
}

// response is struct seccomp_notif_resp.
type response struct {
	id    uint64
	val   int64
	error int32
	flags uint32
}

// Receive waits for a call. ENOENT says that the caller went away meanwhile.
func Receive(listener int) (*Call, error) {
	n := new(Call) // it has to be zero
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(n)))
	if errno != 0 {
		return nil, errno
	}
	return n, nil
}

// Valid tells whether the caller still waits.
func Valid(listener int, id uint64) bool {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_ID_VALID, uintptr(unsafe.Pointer(&id)))
	return errno == 0
}

// Respond ends a call: with errno or, if that is 0, with success. The caller
// may be gone.
func Respond(listener int, id uint64, errno syscall.Errno) {
	r := response{id: id, error: -int32(errno)}
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&r)))
}

// HungUp tells whether nobody has the filter of listener any more.
func HungUp(listener int) bool {
	fds := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, -1)
		if err != unix.EINTR {
			return err != nil || fds[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
		}
	}
}
