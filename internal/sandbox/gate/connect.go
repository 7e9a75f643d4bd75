package gate

import (
	"math/rand/v2"
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Connect connects a TCP socket of that family to a port of the gate, and returns once
// the gate has the connection. After an error there is no connection: the error comes
// from a call, or is ECONNREFUSED if nothing is behind the gate, or ETIMEDOUT. The socket
// must be the only one at its port, and stay open during the call. No signal may
// interrupt the thread.
func (t *Teller) Connect(socket, family int, to uint16) error {
	connection{socket, family}.clear()
	flags, err := unix.FcntlInt(uintptr(socket), unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	if flags&unix.O_NONBLOCK == 0 {
		if _, err := unix.FcntlInt(uintptr(socket), unix.F_SETFL, flags|unix.O_NONBLOCK); err != nil {
			return err
		}
		defer func() { _, _ = unix.FcntlInt(uintptr(socket), unix.F_SETFL, flags) }()
	}
	return t.tell(to, time.Now().Add(arrivalTime), connection{socket, family})
}

// connection is a socket that does not block, while it is connected. The attempt runs to
// its end at once: on one host that takes no time, and a failed attempt must be over
// before another socket gets the port.
type connection struct{ socket, family int }

// clear takes options off the socket. Another process could share the port with a socket that has one
// of the first two; with the last one connect(2) does not connect. An error leaves an option as it
// was, which is 0.
func (c connection) clear() {
	_ = unix.SetsockoptInt(c.socket, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0)
	_ = unix.SetsockoptInt(c.socket, unix.SOL_SOCKET, unix.SO_REUSEPORT, 0)
	_ = unix.SetsockoptInt(c.socket, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 0)
}

// source returns the address of the socket, which it binds if it has none.
func (c connection) source() (netip.AddrPort, error) {
	if c.hasPeer() {
		return netip.AddrPort{}, unix.EISCONN
	}
	if at := c.name(); at.Port() != 0 {
		return at, nil // of a failed attempt
	}
	// A port that the kernel chooses is freed as soon as an attempt fails; a port that we
	// choose stays until the socket is closed. Ports of recently ended connections are
	// taken for a minute: if there are many, an address with fewer is tried.
	const first, count, usual, tries = 32768, 28232, 64, 128
	for i := range tries {
		at := loopback(uint16(first + rand.IntN(count)))
		if i >= usual {
			at = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(254)), byte(rand.IntN(256)), byte(1 + rand.IntN(254))}), at.Port())
		}
		if err := unix.Bind(c.socket, c.sockaddr(at)); err != unix.EADDRINUSE {
			return at, err
		}
	}
	return netip.AddrPort{}, unix.EADDRNOTAVAIL
}

// name returns the address of the socket; its port is 0 as long as it has none.
func (c connection) name() netip.AddrPort {
	switch at, _ := unix.Getsockname(c.socket); at := at.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(at.Addr), uint16(at.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(at.Addr).Unmap(), uint16(at.Port))
	}
	return netip.AddrPort{}
}

// connect connects the socket, or fails when that time has come.
func (c connection) connect(until time.Time, to netip.AddrPort) error {
	err := unix.Connect(c.socket, c.sockaddr(to))
	if err != unix.EINPROGRESS {
		return err
	}
	if err := poll(c.socket, unix.POLLOUT, until); err != nil {
		return err
	}
	errno, err := unix.GetsockoptInt(c.socket, unix.SOL_SOCKET, unix.SO_ERROR)
	switch {
	case err != nil:
		return err
	case errno != 0:
		return syscall.Errno(errno)
	case !c.hasPeer():
		return unix.ECONNREFUSED // it has already ended
	}
	return nil
}

// disconnect ends an attempt of connect: the peer gets a reset.
func (c connection) disconnect() {
	none := unix.RawSockaddrAny{Addr: unix.RawSockaddr{Family: unix.AF_UNSPEC}}
	_, _, _ = unix.Syscall(unix.SYS_CONNECT, uintptr(c.socket), uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none.Addr))
}

func (c connection) hasPeer() bool {
	_, err := unix.Getpeername(c.socket)
	return err == nil
}

// sockaddr returns an IPv4 address in the form of the socket's family.
func (c connection) sockaddr(at netip.AddrPort) unix.Sockaddr {
	if c.family == unix.AF_INET6 {
		return &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
	}
	return &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
}

// poll waits for an event on a descriptor; ETIMEDOUT if there is none until then.
func poll(fd int, events int16, until time.Time) error {
	for {
		left := time.Until(until)
		if left <= 0 {
			return unix.ETIMEDOUT
		}
		ready := []unix.PollFd{{Fd: int32(fd), Events: events}}
		n, err := unix.Poll(ready, int(left.Milliseconds())+1)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case n > 0:
			return nil
		}
	}
}
