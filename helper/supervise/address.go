package supervise

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// connect does connect(2) with the socket and the address of a.
func (a *address) connect() syscall.Errno { return a.call(unix.SYS_CONNECT) }

// bind does bind(2) with the socket and the address of a.
func (a *address) bind() syscall.Errno { return a.call(unix.SYS_BIND) }

// call makes the system call of that number. The functions of package unix
// would not do: they take an address that has been parsed, and here the kernel
// judges whatever bytes the command has passed.
func (a *address) call(number uintptr) syscall.Errno {
	var addr unsafe.Pointer
	if len(a.sockaddr) > 0 {
		addr = unsafe.Pointer(&a.sockaddr[0])
	}
	_, _, errno := unix.Syscall(number, uintptr(a.socket), uintptr(addr), uintptr(len(a.sockaddr)))
	return errno
}
