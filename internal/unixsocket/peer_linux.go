package unixsocket

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Peer returns the user who has called connect(2) at the other end of a connection, or listen(2).
// A user whom the user namespace of this process does not know has the overflow uid, 65534.
func Peer(conn *net.UnixConn) (uid uint32, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	var peerErr error
	if err := raw.Control(func(fd uintptr) {
		peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if peerErr != nil {
		return 0, fmt.Errorf("asking whose the other end is: %w", os.NewSyscallError("getsockopt", peerErr))
	}
	return peer.Uid, nil
}
