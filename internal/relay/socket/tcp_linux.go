package socket

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxUnsent is how many bytes may lie in the kernel that it has not sent yet. They
// go out before every small frame of another lane: on a path of 100 Mbit/s a small
// frame needs 570 ms under a flood without this bound, 36 ms with it (medians), and
// the flood is as fast (BenchmarkLatencyUnderFlood).
const maxUnsent = 32 << 10

// tune sets the options of the TCP connection under conn. Go has set
// TCP_NODELAY.
func tune(conn net.Conn) {
	c := tcp(conn)
	if c == nil {
		return
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return // it is closed, as its user will see
	}
	_ = raw.Control(func(fd uintptr) {
		// After an error all works as well, but bulk delays small frames more.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, maxUnsent)
	})
}

// attempt writes without waiting. It is part of the wire so that a write
// allocates nothing.
type attempt struct {
	raw   syscall.RawConn
	write func(fd uintptr) bool
	p     []byte
	n     int
	err   error
}

// newAttempt returns nil for a connection that is not plain TCP: with TLS, say,
// what is written is not what the kernel gets.
func newAttempt(conn net.Conn) *attempt {
	c, ok := conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil // it is closed, as its user will see
	}
	a := &attempt{raw: raw}
	a.write = func(fd uintptr) bool {
		a.n, a.err = syscall.SendmsgN(int(fd), a.p, nil, nil, syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL)
		return true
	}
	return a
}

// tryWrite writes as much of p as the kernel takes at once. Only the goroutine in
// the role of the writer calls it.
func (w *wire) tryWrite(p []byte) (int, error) {
	a := w.attempt
	a.p, a.n, a.err = p, 0, nil
	// A deadline that an earlier write has left behind would fail this one.
	_ = w.Conn.SetWriteDeadline(time.Time{})
	err := a.raw.Write(a.write)
	a.p = nil
	switch {
	case err != nil:
		return 0, err
	case a.err == syscall.EAGAIN || a.err == syscall.EINTR:
		return 0, nil
	case a.err != nil:
		return 0, a.err
	}
	return a.n, nil
}
