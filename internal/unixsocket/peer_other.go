//go:build !linux

package unixsocket

import (
	"errors"
	"net"
)

// Peer returns the user at the other end of a connection. Only Linux supports it.
func Peer(*net.UnixConn) (uid uint32, err error) {
	return 0, errors.New("the user at the other end of a UNIX socket can be found only on Linux")
}
