package supervise

import (
	"encoding/binary"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/internal/sandbox/supervise/sockfd"
	"github.com/execagent/execagent/sandbox"
)

// address holds the arguments of a call of connect or bind. It owns its
// descriptors.
type address struct {
	socket   int          // a duplicate of the caller's, or the descriptor of held
	held     *sockfd.Copy // if a supervisor made the socket; else nil
	domain   int          // of the socket, such as AF_UNIX
	kind     int          // such as SOCK_STREAM
	sockaddr []byte       // a copy of the address, or its replacement by judgeConnect
	object   int          // the socket in the file system that sockaddr leads to, or -1
	path     string       // the canonical path of that socket, if it was found
	dir      int          // the caller's working directory, or -1
}

// close closes the descriptors of a, which are ours and not the command's.
func (a *address) close() {
	if a.held != nil {
		a.held.Release()
		a.socket = -1
	}
	for _, fd := range []int{a.socket, a.object, a.dir} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// takeAddress copies the arguments of a call of connect or bind: it reads the
// address, and duplicates the socket or finds the copy of it. If there should be a
// copy but is none, the error is errNoCopy.
func (r *request) takeAddress() (*address, error) {
	fd, addr, length := r.int(0), r.pointer(1), r.int(2)
	// The checks have the kernel's order, so that the errno is the same.
	a := &address{object: -1, dir: -1}
	if err := r.takeSocket(a, fd); err != nil {
		return nil, err
	}
	sockaddr, err := r.takeSockaddr(addr, length)
	if err != nil {
		a.close()
		return nil, err
	}
	a.sockaddr = sockaddr
	return a, nil
}

// takeSocket fills in the fields of a about the caller's socket fd.
func (r *request) takeSocket(a *address, fd int) (err error) {
	if r.n.config.Level != sandbox.NoLevel {
		if a.held, err = r.copyOf(fd); err == nil {
			a.socket, a.domain, a.kind = a.held.FD, a.held.Family, a.held.Kind
		}
		return err
	}
	if a.socket, err = linux.DuplicateFD(r.thread(), fd); err != nil {
		return r.there(err)
	}
	if a.domain, err = unix.GetsockoptInt(a.socket, unix.SOL_SOCKET, unix.SO_DOMAIN); err == nil {
		a.kind, err = unix.GetsockoptInt(a.socket, unix.SOL_SOCKET, unix.SO_TYPE)
	}
	if err = r.there(err); err != nil {
		a.close()
	}
	return err
}

// takeSockaddr reads an address.
func (r *request) takeSockaddr(addr uint64, length int) ([]byte, error) {
	if length < 0 || length > maxSockaddr {
		return nil, unix.EINVAL
	}
	sockaddr, err := r.memory(addr, length)
	return sockaddr, r.there(err)
}

// openDir opens the working directory of the caller.
func (r *request) openDir(a *address) (err error) {
	a.dir, err = r.cwd()
	return r.there(err)
}

// family returns the family of the address, which need not be the family of the
// socket. An address that is too short for a family means AF_UNSPEC.
func (a *address) family() uint16 {
	if len(a.sockaddr) < 2 {
		return unix.AF_UNSPEC
	}
	return binary.NativeEndian.Uint16(a.sockaddr)
}

// connect does connect(2) with the socket and the address of a.
func (a *address) connect() syscall.Errno { return a.call(unix.SYS_CONNECT) }

// bind does bind(2) with the socket and the address of a.
func (a *address) bind() syscall.Errno { return a.call(unix.SYS_BIND) }

// call makes the system call with that number. It does not use the functions of
// package unix, because they take a parsed address, and here the kernel must
// judge the bytes that the command passed.
func (a *address) call(number uintptr) syscall.Errno {
	var addr unsafe.Pointer
	if len(a.sockaddr) > 0 {
		addr = unsafe.Pointer(&a.sockaddr[0])
	}
	_, _, errno := unix.Syscall(number, uintptr(a.socket), uintptr(addr), uintptr(len(a.sockaddr)))
	return errno
}
