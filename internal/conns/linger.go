package conns

import (
	"syscall"

	"github.com/execagent/execagent/internal/buffer"
)

// Stream is a TCP connection, or a connection between UNIX sockets.
type Stream interface {
	syscall.Conn
	CloseWrite() error
}

// Linger is called right before c is closed, so that all bytes written on c
// arrive. When a TCP socket with unread bytes is closed, the kernel sends a
// reset and drops unsent bytes (tcp(7); RFC 2525, 2.17). A UNIX socket drops
// nothing, but the peer reads an error after the bytes. So Linger ends the
// sending side, and discards the bytes that the kernel has received, without
// waiting for more. It ignores errors of both, because the peer may be gone. A
// Read of c may be under way. Linger may be called at once for different
// connections.
func Linger(c Stream) {
	_ = c.CloseWrite()
	raw, err := c.SyscallConn()
	if err != nil {
		return // it is already closed
	}
	buf := buffer.Get(64 << 10)
	defer buffer.Recycle(buf)
	// Control and not Read, which would wait for a Read under way. The bound,
	// 16 MiB, is for a peer that sends as fast as this throws away.
	_ = raw.Control(func(fd uintptr) {
		for range 256 {
			n, _, err := syscall.Recvfrom(int(fd), buf[:cap(buf)], syscall.MSG_DONTWAIT)
			if n <= 0 || err != nil {
				return
			}
		}
	})
}
