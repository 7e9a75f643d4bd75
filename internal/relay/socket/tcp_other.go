//go:build !linux

package socket

import "net"

// tune does nothing here: the option that it sets is one of Linux.
func tune(net.Conn) {}

// attempt has no implementation here, so that small messages are written by the
// writer's goroutine.
type attempt struct{}

func newAttempt(net.Conn) *attempt { return nil }

func (w *wire) tryWrite([]byte) (int, error) { return 0, nil }
