// Package linger ends the TCP connections that our WebSockets run on such that
// the peer gets the last words.
package linger

import (
	"net"
	"syscall"

	"github.com/execagent/execagent/buffer"
)

// End makes what was written on c arrive although the caller is about to close
// c: closing a socket with unread bytes in it makes the kernel send a reset and
// forget what it has not sent yet (tcp(7); RFC 2525, 2.17). So End says that
// nothing more is written, and throws away what the kernel has received,
// without waiting for more. Both steps are best effort, since the peer may be
// gone. A Read of c may be under way.
func End(c *net.TCPConn) {
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
