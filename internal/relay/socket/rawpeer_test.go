package socket

import (
	"net"
	"testing"

	"github.com/execagent/execagent/test/rawclient"
	"github.com/execagent/execagent/test/rig"
)

const upgradeRequest = "GET /rendezvous/?sig=secret HTTP/1.1\r\nHost: relay.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
	"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"

// rawPeer is the client end of a WebSocket that may break every rule.
type rawPeer struct{ *rawclient.Peer }

// newRawPeer does the upgrade over conn.
func newRawPeer(t testing.TB, conn net.Conn) *rawPeer {
	t.Helper()
	return &rawPeer{rawclient.Upgrade(t, conn, upgradeRequest)}
}

// rawPipe returns a raw client and the server's socket, over a pipe.
func rawPipe(t testing.TB, cfg Config) (*rawPeer, *Socket) {
	t.Helper()
	l := newPipeListener()
	accepted := make(chan *Socket, 1)
	serve(t, l, cfg, accepted)
	conn, err := l.dial(t.Context(), "", "")
	rig.Must(t, err)
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
	conn := rig.Value(net.Dial("tcp", l.Addr().String()))
	p := newRawPeer(t, conn)
	s := <-accepted
	t.Cleanup(func() { s.Close() })
	return p, s
}

// send writes a masked frame.
func (p *rawPeer) send(t testing.TB, first byte, payload string) {
	t.Helper()
	p.Send(t, rawclient.Frame(first, []byte(payload)))
}

// frame reads a frame.
func (p *rawPeer) frame() (first byte, payload string, err error) {
	first, data, err := p.Next()
	return first, string(data), err
}
