package gate

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sockowner"
)

const (
	// MaxListeners bounds the listeners of one gate.
	MaxListeners = 32
	// firstPort is the port of the first listener in a network namespace of the
	// command's own, where every port is free. It is below those that the kernel gives
	// to sockets by itself.
	firstPort = 31280
)

// Gate has the listeners of one command, each at an address in the command's view,
// which is known before the command is started. Its methods may run at once.
type Gate struct {
	listeners []*listener
	end       func() // ends the link between the gate and the other process; nil: there is none
	work      sync.WaitGroup
	bridges   bridges
	held      *Held // nil: no connections are held
	closing   sync.Once
}

// listener yields connections of the command.
type listener struct {
	addr  *net.TCPAddr
	admit func(*net.TCPConn) bool // reports whether the connection is the command's
	ready chan struct{}           // closed once inner or err is there
	inner *net.TCPListener
	err   error

	mu     sync.Mutex
	closed bool
}

// HTTP is the first listener: that of a proxy for HTTP.
func (g *Gate) HTTP() net.Listener { return g.listeners[0] }

// SOCKS5 is the second listener; nil if there is none.
func (g *Gate) SOCKS5() net.Listener {
	if len(g.listeners) < 2 {
		return nil
	}
	return g.listeners[1]
}

// Close closes the listeners, and waits for the gate's own goroutines. Accepted
// connections stay, except bridged ones. It may be called often, also on nil.
func (g *Gate) Close() {
	if g == nil {
		return
	}
	g.closing.Do(func() {
		for _, l := range g.listeners {
			_ = l.Close()
		}
		if g.end != nil {
			g.end()
		}
		g.bridges.close()
		g.held.close()
	})
	g.work.Wait()
}

// Addr is the address that the command connects to.
func (l *listener) Addr() net.Addr { return l.addr }

// Accept returns the next connection of the command. It closes all others. If the
// sockets come from another process, it first waits for them.
func (l *listener) Accept() (net.Conn, error) {
	<-l.ready
	if l.err != nil {
		return nil, l.err
	}
	for {
		conn, err := l.inner.AcceptTCP()
		if err != nil {
			return nil, err
		}
		if l.admit(conn) {
			return conn, nil
		}
		_ = conn.Close()
	}
}

// Close makes Accept fail with [net.ErrClosed].
func (l *listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	if l.inner != nil {
		return l.inner.Close()
	}
	if l.err == nil {
		l.err = &net.OpError{Op: "accept", Net: "tcp", Addr: l.addr, Err: net.ErrClosed}
		close(l.ready)
	}
	return nil
}

// take gives the listener its socket, or the reason why it gets none.
func (l *listener) take(inner *net.TCPListener, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.inner != nil || l.err != nil {
		if inner != nil {
			_ = inner.Close()
		}
		return
	}
	l.inner, l.err = inner, err
	close(l.ready)
}

// everybody admits all connections, because only the command reaches the listener.
func everybody(*net.TCPConn) bool { return true }

// Owned listens at n ports of the host for a command that nothing confines. It closes
// connections of sockets that belong to another user, or whose owner the kernel does
// not reveal.
func Owned(n int) (*Gate, error) {
	uid := os.Geteuid()
	return onHost(n, func(conn *net.TCPConn) bool {
		owner, err := sockowner.Of(conn)
		return err == nil && owner == uid
	})
}

// onHost listens at n ports of the loopback interface.
func onHost(n int, admit func(*net.TCPConn) bool) (*Gate, error) {
	g := new(Gate)
	for range n {
		inner, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			g.Close()
			return nil, fmt.Errorf("listening for the proxy of a command: %w", err)
		}
		l := &listener{addr: inner.Addr().(*net.TCPAddr), admit: admit, ready: make(chan struct{})}
		l.take(inner, nil)
		g.listeners = append(g.listeners, l)
	}
	return g, nil
}

// Ports returns the ports of the listeners.
func (g *Gate) Ports() []uint16 {
	var ports []uint16
	for _, l := range g.listeners {
		ports = append(ports, uint16(l.addr.Port))
	}
	return ports
}

// seqpacket makes the two ends of a socket pair for packets.
func seqpacket() (ours, theirs *os.File, err error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(ends[0]), "gate"), os.NewFile(uintptr(ends[1]), "gate"), nil
}

// loopback returns the address that a command has for a port of its gate.
func loopback(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
}

// errNoListeners is the error of Accept if the process that makes the sockets ended
// before it made them.
var errNoListeners = errors.New("the sandbox has ended before the proxy's listeners were there")
