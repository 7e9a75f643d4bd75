package socket

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

// limitUnsent sets what tune sets, 0 for no limit.
func limitUnsent(t testing.TB, n int, sockets ...*Socket) {
	t.Helper()
	if n == 0 {
		n = -1
	}
	for _, s := range sockets {
		raw, err := tcp(s.wire.Conn).SyscallConn()
		rig.Check(t, err)
		_ = raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, n)
		})
		rig.Check(t, err)
	}
}
