//go:build !linux

package socket

import "net"

// tune does nothing here, because the option that it sets exists on Linux only.
func tune(net.Conn) {}

// attempt has no implementation here, so the senders do not use tryWrite.
type attempt struct{}

func newAttempt(net.Conn) *attempt { return nil }

func (w *wire) tryWrite([]byte) (int, error) { return 0, nil }
