package supervise

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/helper/gate"
)

// A command with a managed network connects to the listeners of its gate, and to nothing
// else (network.md 9). The supervisor tells the gate each connection before it makes it:
// the listeners are ports of the host, which everybody can connect to. So a connection is
// made here to its end, also where the command would not wait for it: on one host that
// takes no time, and what has failed has to be taken back before somebody else gets the
// port.

// mayReachManaged is mayReach for such a command. The errors are those of a namespace
// with nothing but the loopback interface, where the gate's listeners are all there is.
func (n *Notifier) mayReachManaged(family, kind int, sockaddr []byte) error {
	inet := family == unix.AF_INET || family == unix.AF_INET6
	switch {
	case family == unix.AF_UNIX && n.config.Policy.AllUnixSockets && (kind == unix.SOCK_STREAM || kind == unix.SOCK_SEQPACKET):
		if sockaddr == nil {
			return nil
		}
		_, _, err := unixPath(sockaddr)
		return err
	case !inet || kind != unix.SOCK_STREAM:
		return unix.EPERM
	case sockaddr == nil:
		return nil
	}
	to, _, ok := inetAddress(sockaddr)
	switch at := to.Addr().Unmap(); {
	case len(sockaddr) >= 2 && binary.NativeEndian.Uint16(sockaddr) == unix.AF_UNSPEC:
		return nil
	case !ok:
		return unix.EINVAL
	case at == gateHost && n.config.Proxy.Leads(to.Port()):
		return nil
	case at.IsLoopback() || at.IsUnspecified():
		return unix.ECONNREFUSED
	}
	return unix.ENETUNREACH
}

// gateHost is where the gate's listeners are.
var gateHost = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// connectGate does the call of connect in a, which was judged, and tells the gate.
func (r *request) connectGate(a *address) answer {
	if a.family() == unix.AF_UNSPEC {
		a.close()
		return answer{} // there is no connection that it would end
	}
	return r.apart(func(r *request) answer {
		defer a.close()
		err := a.connectTold(r.n.config.Proxy)
		a.held.Attempted(err)
		return result(err)
	}, a.close)
}

// connectTold connects the socket, and returns once the gate has the connection. After an
// error there is none.
func (a *address) connectTold(proxy *gate.Teller) error {
	to, _, _ := inetAddress(a.sockaddr)
	// Another process could share the port with a socket that has one of the first two;
	// with the last one connect(2) does not connect.
	for _, option := range [][2]int{{unix.SOL_SOCKET, unix.SO_REUSEADDR}, {unix.SOL_SOCKET, unix.SO_REUSEPORT}, {unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT}} {
		_ = unix.SetsockoptInt(a.socket, option[0], option[1], 0) // an error leaves it as it was, which is 0
	}
	flags, err := unix.FcntlInt(uintptr(a.socket), unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	if flags&unix.O_NONBLOCK == 0 {
		if _, err := unix.FcntlInt(uintptr(a.socket), unix.F_SETFL, flags|unix.O_NONBLOCK); err != nil {
			return err
		}
		defer func() { _, _ = unix.FcntlInt(uintptr(a.socket), unix.F_SETFL, flags) }()
	}
	return proxy.Tell(to.Port(), a)
}

// Port returns the port of the socket, which it binds if it has none.
func (a *address) Port() (uint16, error) {
	if a.peer() {
		return 0, unix.EISCONN
	}
	if port := portOf(a.socket); port != 0 {
		return port, nil // of an attempt that has failed
	}
	// A port that the kernel chooses would be given up as soon as an attempt fails: this
	// one belongs to the socket until that is closed.
	const first, count, tries = 32768, 28232, 512
	var err error
	for range tries {
		port := uint16(first + rand.IntN(count))
		if err = a.bindLoopback(port); err != unix.EADDRINUSE {
			return port, err
		}
	}
	return 0, unix.EADDRNOTAVAIL
}

// bindLoopback binds the socket to that port of the loopback interface.
func (a *address) bindLoopback(port uint16) error {
	if a.domain == unix.AF_INET6 {
		return unix.Bind(a.socket, &unix.SockaddrInet6{Port: int(port), Addr: gateHost.As16()})
	}
	return unix.Bind(a.socket, &unix.SockaddrInet4{Port: int(port), Addr: gateHost.As4()})
}

// Connect connects the socket, which does not block, until then.
func (a *address) Connect(until time.Time) error {
	errno := a.connect()
	if errno != unix.EINPROGRESS {
		return errOrNil(errno)
	}
	if err := gate.Poll(a.socket, unix.POLLOUT, until); err != nil {
		return err
	}
	code, err := unix.GetsockoptInt(a.socket, unix.SOL_SOCKET, unix.SO_ERROR)
	switch {
	case err != nil:
		return err
	case code != 0:
		return syscall.Errno(code)
	case !a.peer():
		return unix.ECONNREFUSED // ended by now
	}
	return nil
}

// Disconnect ends what Connect has begun.
func (a *address) Disconnect() {
	none := &address{socket: a.socket, sockaddr: binary.NativeEndian.AppendUint32(nil, unix.AF_UNSPEC)[:2]}
	none.sockaddr = append(none.sockaddr, make([]byte, 14)...)
	_ = none.connect() // the peer is sent a reset
}

// peer tells whether the socket is connected.
func (a *address) peer() bool {
	_, err := unix.Getpeername(a.socket)
	return err == nil
}

// portOf returns the port of a socket, 0 if it has none.
func portOf(fd int) uint16 {
	switch at, _ := unix.Getsockname(fd); at := at.(type) {
	case *unix.SockaddrInet4:
		return uint16(at.Port)
	case *unix.SockaddrInet6:
		return uint16(at.Port)
	}
	return 0
}
