package rig

import (
	"io"
	"net"
	"sync"
)

// Listen calls serve with each connection to the address, until the test ends. Then it closes the
// remaining connections and waits for serve.
func Listen(t T, network, address string, serve func(net.Conn)) net.Addr {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatalf("%v", err)
	}
	var serving sync.WaitGroup
	var mu sync.Mutex // guards the variables below
	var conns []net.Conn
	over := false
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			if conns = append(conns, conn); over {
				_ = conn.Close()
			}
			mu.Unlock()
			serving.Go(func() {
				defer conn.Close()
				serve(conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		over = true
		for _, conn := range conns {
			_ = conn.Close()
		}
		mu.Unlock()
		serving.Wait()
	})
	return l.Addr()
}

// Echo sends all received data back, and ends at the end of the data.
func Echo(conn net.Conn) { _, _ = io.Copy(conn, conn) }
