package supervise

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

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
