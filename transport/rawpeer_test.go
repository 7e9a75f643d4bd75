package transport

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rawclient"
	"github.com/execagent/execagent/test/rig"
)

// connect dials a listener and says nothing yet.
func connect(t testing.TB, l *Listener) net.Conn {
	t.Helper()
	conn := rig.Value(net.Dial(l.Addr().Network(), l.Addr().String()))
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	return conn
}

// dialRaw connects to a listener with an end that may break every rule.
func dialRaw(t testing.TB, l *Listener) *rawclient.Peer {
	t.Helper()
	return rawclient.Upgrade(t, connect(t, l), "GET / HTTP/1.1\r\nHost: x\r\n"+upgradeHeaders+"\r\n")
}

func rawPair(t testing.TB, config Config) (*rawclient.Peer, *WebSocket) {
	t.Helper()
	l := listen(t, config)
	p := dialRaw(t, l)
	return p, accept(t, l)
}

// wantDropped fails unless the server ends the TCP connection having sent
// nothing, no close frame either.
func wantDropped(t testing.TB, p *rawclient.Peer) {
	t.Helper()
	first, payload, err := p.Next()
	if err == nil {
		t.Fatalf("got frame %#x %q, want the connection dropped", first, payload)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("the connection is still open")
	}
}
