package agent

import (
	"net"
	"sync"
	"testing"
)

// listenFor calls serve with each connection that comes to the address it returns, until the
// test ends.
func listenFor(t testing.TB, serve func(net.Conn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				serve(conn)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		serving.Wait()
	})
	return l.Addr().String()
}
