package transport

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/rpc"
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

// wantFrame reads a frame that a server sends.
func wantFrame(t testing.TB, p *rawclient.Peer, first byte, payload string) {
	t.Helper()
	got, text, err := p.Next()
	rig.Must(t, err)
	rig.Is(t, got, first, "the first byte of a frame")
	rig.Is(t, string(text), payload, "the payload of a frame")
}

// wantRead reads a message.
func wantRead(t testing.TB, c rpc.Conn, want string) {
	t.Helper()
	got, err := c.Read()
	rig.Must(t, err)
	rig.Is(t, string(got), want, "Read")
	buffer.Recycle(got)
}

// wantClosed fails unless the other end has closed a connection.
func wantClosed(t testing.TB, from io.Reader) {
	t.Helper()
	if _, err := from.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v, want the end of the connection", err)
	}
}

// dialTo returns a connection to a listener.
func dialTo(t testing.TB, l *Listener, config DialConfig) *WebSocket {
	t.Helper()
	c, err := Dial(t.Context(), l.URL(), config)
	rig.Must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// refusal is the status with which Dial was refused, or 0.
func refusal(err error) int {
	if refused, ok := errors.AsType[*StatusError](err); ok {
		return refused.Status
	}
	return 0
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
