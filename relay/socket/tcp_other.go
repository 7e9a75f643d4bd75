//go:build !linux

package socket

import "net"

// tune is for Linux.
func tune(net.Conn) {}

// linger sends the end of the stream before the close; what else it takes is
// known for Linux only.
func linger(c *net.TCPConn) {
	_ = c.CloseWrite() // the peer may be gone
}

// attempt is for Linux.
type attempt struct{}

func newAttempt(net.Conn) *attempt { return nil }

func (w *wire) tryWrite([]byte) (int, error) { return 0, nil }
