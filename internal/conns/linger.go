package conns

import (
	"syscall"

	"github.com/execagent/execagent/internal/buffer"
)

// Stream is a connection by TCP, or between UNIX sockets.
type Stream interface {
	syscall.Conn
	CloseWrite() error
}

// Linger is called right before c is closed, and makes what was written on c
// arrive all the same. When a socket with unread bytes is closed, the kernel
// sends a reset and forgets what it has not sent yet (tcp(7); RFC 2525, 2.17); a
// UNIX socket forgets nothing, and the peer reads an error after it.
// So Linger ends the sending side, and throws away what the kernel has received,
// without waiting for more. Errors of both are ignored, since the peer may be
// gone. A Read of c may be under way. Linger may be
// called at once for different connections.
func Linger(c Stream) {
	_ = c.CloseWrite()
	raw, err := c.SyscallConn()
	if err != nil {
		return // it is closed already
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
