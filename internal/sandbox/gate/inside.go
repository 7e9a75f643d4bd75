package gate

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
)

// Inside returns a gate whose n listeners are in the network namespace of the command.
// Its init calls [Serve] with the descriptor theirs, which the caller closes.
func Inside(n int) (g *Gate, theirs *os.File, err error) {
	pair, theirs, err := seqpacket()
	if err != nil {
		return nil, nil, err
	}
	made, err := net.FileConn(pair)
	_ = pair.Close() // made has its own
	if err != nil {
		_ = theirs.Close()
		return nil, nil, os.NewSyscallError("dup", err)
	}
	ours := made.(*net.UnixConn)
	g = &Gate{end: func() { _ = ours.Close() }} // receive is woken up
	for i := range n {
		g.listeners = append(g.listeners, &listener{
			addr: net.TCPAddrFromAddrPort(loopback(uint16(firstPort + i))), admit: everybody, ready: make(chan struct{}),
		})
	}
	g.work.Go(func() {
		defer ours.Close()
		sockets, err := receive(ours, n)
		for i, l := range g.listeners {
			var inner *net.TCPListener
			if err == nil {
				inner, err = sockets[i].listener(l.addr)
			}
			l.take(inner, err)
		}
		for _, s := range sockets {
			_ = s.Close()
		}
	})
	return g, theirs, nil
}

// received is a socket that came from the other process.
type received struct{ *os.File }

// listener returns the socket as a listener, which must be at addr.
func (r received) listener(addr *net.TCPAddr) (*net.TCPListener, error) {
	made, err := net.FileListener(r.File)
	if err != nil {
		return nil, fmt.Errorf("taking a listener of the sandbox: %w", err)
	}
	l, ok := made.(*net.TCPListener)
	if !ok || l.Addr().String() != addr.String() {
		_ = made.Close()
		return nil, fmt.Errorf("taking a listener of the sandbox: it is at %v, and not at %v", made.Addr(), addr)
	}
	return l, nil
}

// receive waits for n sockets, which come in one packet.
func receive(from *net.UnixConn, n int) (sockets []received, err error) {
	control := make([]byte, unix.CmsgSpace(4*n))
	_, size, _, _, err := from.ReadMsgUnix(make([]byte, 1), control)
	if err != nil || size == 0 {
		return nil, errNoListeners
	}
	for _, f := range rights(control[:size]) {
		sockets = append(sockets, received{f})
	}
	if len(sockets) != n {
		for _, s := range sockets {
			_ = s.Close()
		}
		return nil, fmt.Errorf("taking the listeners of the sandbox: there are %d, and not %d", len(sockets), n)
	}
	return sockets, nil
}

// Serve makes the listeners of a gate that was made by [Inside], in the network
// namespace of this process, and passes them on to that gate by fd. It closes all of
// them here, and fd. The process needs CAP_NET_ADMIN in the namespace.
func Serve(fd int, ports []uint16) error {
	defer unix.Close(fd)
	if err := linux.RaiseLoopback(); err != nil {
		return fmt.Errorf("starting the loopback interface: %w", err)
	}
	var sockets []int
	defer func() {
		for _, s := range sockets {
			unix.Close(s)
		}
	}()
	for _, port := range ports {
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		sockets = append(sockets, s)
		at := loopback(port)
		if err := unix.Bind(s, &unix.SockaddrInet4{Port: int(port), Addr: at.Addr().As4()}); err != nil {
			return fmt.Errorf("binding %v: %w", at, os.NewSyscallError("bind", err))
		}
		if err := unix.Listen(s, unix.SOMAXCONN); err != nil {
			return fmt.Errorf("listening at %v: %w", at, os.NewSyscallError("listen", err))
		}
	}
	return os.NewSyscallError("sendmsg", unix.Sendmsg(fd, []byte{0}, unix.UnixRights(sockets...), nil, 0))
}
