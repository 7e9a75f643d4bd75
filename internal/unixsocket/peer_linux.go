package unixsocket

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
)

// Peer returns the user that called connect(2), or listen(2), at the other end of a connection. It
// is an error if the user namespace of this process does not know the user, because the kernel then
// returns one uid, usually 65534, for all such users.
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
		return 0, fmt.Errorf("finding the user at the other end: %w", os.NewSyscallError("getsockopt", peerErr))
	}
	if linux.IsNobody(peer.Uid) {
		return 0, fmt.Errorf("uid %d stands for all users who are not in this user namespace", peer.Uid)
	}
	return peer.Uid, nil
}
