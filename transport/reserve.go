package transport

import (
	"fmt"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// reservation holds a port, so that no other program can listen there.
type reservation struct{ fd int }

// reserve takes the port of a listener at the loopback address of the other family
// too, without listening there. A client that dials "localhost" may connect to
// either address, and must not find another program. reserve returns nil if there
// is nothing to take: the listener's address is neither loopback nor unspecified,
// so that "localhost" does not lead to it, or the host lacks the other family.
func reserve(listener netip.AddrPort) (*reservation, error) {
	addr := listener.Addr().Unmap()
	family, other := unix.AF_INET6, netip.IPv6Loopback()
	var sockaddr unix.Sockaddr = &unix.SockaddrInet6{Port: int(listener.Port()), Addr: other.As16()}
	switch {
	case addr == netip.IPv6Loopback():
		family, other = unix.AF_INET, netip.AddrFrom4([4]byte{127, 0, 0, 1})
		sockaddr = &unix.SockaddrInet4{Port: int(listener.Port()), Addr: other.As4()}
	case !addr.Is4() || !addr.IsLoopback() && !addr.IsUnspecified():
		return nil, nil
	}
	syscall.ForkLock.RLock() // so that no child inherits it
	fd, err := unix.Socket(family, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil
	}
	switch err := unix.Bind(fd, sockaddr); err {
	case nil:
		return &reservation{fd}, nil
	case unix.EADDRNOTAVAIL: // the family is switched off
		unix.Close(fd)
		return nil, nil
	default:
		unix.Close(fd)
		return nil, fmt.Errorf("taking port %d at %v too: %w", listener.Port(), other, os.NewSyscallError("bind", err))
	}
}

func (r *reservation) release() {
	if r != nil {
		unix.Close(r.fd)
	}
}
