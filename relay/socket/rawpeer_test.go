package socket

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"
)

const upgradeRequest = "GET /rendezvous/?sig=secret HTTP/1.1\r\nHost: relay.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
	"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"

// rawPeer is the client end of a WebSocket that may break every rule.
type rawPeer struct {
	net.Conn
	r *bufio.Reader
}

// newRawPeer does the upgrade over conn.
func newRawPeer(t testing.TB, conn net.Conn) *rawPeer {
	t.Helper()
	t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, upgradeRequest); err != nil {
		t.Fatal(err)
	}
	p := &rawPeer{Conn: conn, r: bufio.NewReader(conn)}
	response, err := http.ReadResponse(p.r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("upgrade: got status %s", response.Status)
	}
	return p
}

// rawPipe returns a raw client and the server's socket, over a pipe.
func rawPipe(t testing.TB, cfg Config) (*rawPeer, *Socket) {
	t.Helper()
	l := newPipeListener()
	accepted := make(chan *Socket, 1)
	serve(t, l, cfg, accepted)
	conn, err := l.dial(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	p := newRawPeer(t, conn)
	s := <-accepted
	t.Cleanup(func() { s.Close() })
	return p, s
}

// rawTCP is rawPipe over TCP.
func rawTCP(t testing.TB, cfg Config) (*rawPeer, *Socket) {
	t.Helper()
	l := listenTCP(t)
	accepted := make(chan *Socket, 1)
	serve(t, l, cfg, accepted)
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	p := newRawPeer(t, conn)
	s := <-accepted
	t.Cleanup(func() { s.Close() })
	return p, s
}

// send writes a masked frame.
func (p *rawPeer) send(t testing.TB, first byte, payload string) {
	t.Helper()
	if _, err := p.Write(appendFrame(nil, first, []byte(payload), true)); err != nil {
		t.Fatal(err)
	}
}

// frame reads an unmasked frame of less than 126 bytes.
func (p *rawPeer) frame() (first byte, payload string, err error) {
	var head [2]byte
	if _, err := io.ReadFull(p.r, head[:]); err != nil {
		return 0, "", err
	}
	body := make([]byte, head[1])
	_, err = io.ReadFull(p.r, body)
	return head[0], string(body), err
}
