package socket

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxUnsent bounds the bytes that the kernel has accepted but not sent yet. These bytes
// go out before every small frame of another lane. On a path of 100 Mbit/s under a flood,
// a small frame needs 570 ms without this bound and 36 ms with it (medians). The flood
// is as fast with the bound (BenchmarkLatencyUnderFlood).
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
		return // the connection is closed, which the next read or write reports
	}
	_ = raw.Control(func(fd uintptr) {
		// After an error everything still works, but bulk delays small frames more.
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

// newAttempt returns nil for a connection that is not plain TCP, because with TLS, for
// example, the bytes of a frame are not the bytes that the kernel gets.
func newAttempt(conn net.Conn) *attempt {
	c, ok := conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil // the connection is closed, which the next read or write reports
	}
	a := &attempt{raw: raw}
	a.write = func(fd uintptr) bool {
		a.n, a.err = syscall.SendmsgN(int(fd), a.p, nil, nil, syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL)
		return true
	}
	return a
}

// tryWrite writes as much of p as the kernel accepts without waiting, and returns the
// number of bytes. Only the goroutine in the role of the writer may call it.
func (w *wire) tryWrite(p []byte) (int, error) {
	a := w.attempt
	a.p, a.n, a.err = p, 0, nil
	// Without this, the deadline of an earlier write would fail this write.
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
