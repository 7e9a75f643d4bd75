package helper

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// notification is a system call that waits for an answer: struct
// seccomp_notif, seccomp_unotify(2).
type notification struct {
	id     uint64
	thread uint32 // as this process numbers it
	_      uint32
	// struct seccomp_data
	number  int32
	arch    uint32
	pointer uint64
	args    [6]uint64
}

// response is struct seccomp_notif_resp.
type response struct {
	id    uint64
	val   int64
	error int32
	flags uint32
}

// receiveCall waits for a call. ENOENT says that the caller went away meanwhile.
func receiveCall(listener int) (*notification, error) {
	n := new(notification) // it has to be zero
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(n)))
	if errno != 0 {
		return nil, errno
	}
	return n, nil
}

// valid tells whether the caller still waits.
func valid(listener int, id uint64) bool {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_ID_VALID, uintptr(unsafe.Pointer(&id)))
	return errno == 0
}

// respond ends a call: with errno or, if that is 0, with success. The caller
// may be gone.
func respond(listener int, id uint64, errno syscall.Errno) {
	r := response{id: id, error: -int32(errno)}
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&r)))
}

// hungUp tells whether nobody has the filter of listener any more.
func hungUp(listener int) bool {
	fds := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, -1)
		if err != unix.EINTR {
			return err != nil || fds[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
		}
	}
}

// connect is connect(2) with the address as it is.
func (a *address) connect() syscall.Errno { return a.call(unix.SYS_CONNECT) }

// bind is bind(2) with the address as it is.
func (a *address) bind() syscall.Errno { return a.call(unix.SYS_BIND) }

func (a *address) call(number uintptr) syscall.Errno {
	var addr unsafe.Pointer
	if len(a.sockaddr) > 0 {
		addr = unsafe.Pointer(&a.sockaddr[0])
	}
	_, _, errno := unix.Syscall(number, uintptr(a.socket), uintptr(addr), uintptr(len(a.sockaddr)))
	return errno
}
