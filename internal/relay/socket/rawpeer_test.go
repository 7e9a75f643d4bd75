package socket

import (
	"context"
	"net"
	"testing"

	"github.com/execagent/execagent/test/rawclient"
	"github.com/execagent/execagent/test/rig"
)

const upgradeRequest = "GET /rendezvous/?sig=secret HTTP/1.1\r\nHost: relay.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
	"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"

// rawPeer is the client end of a WebSocket that may break every rule.
type rawPeer struct{ *rawclient.Peer }

// rawPipe returns a raw client and the server's socket, over a pipe.
func rawPipe(t testing.TB, cfg Config) (*rawPeer, *Socket) {
	t.Helper()
	l := newPipes()
	return raw(t, l, cfg, l.Dial)
}

// rawTCP is rawPipe over TCP.
func rawTCP(t testing.TB, cfg Config) (*rawPeer, *Socket) {
	t.Helper()
	return raw(t, listenTCP(t), cfg, (&net.Dialer{}).DialContext)
}

func raw(t testing.TB, l net.Listener, cfg Config, dial func(ctx context.Context, network, address string) (net.Conn, error)) (*rawPeer, *Socket) {
	t.Helper()
	accepted := make(chan *Socket, 1)
	serve(t, l, cfg, accepted)
	p := &rawPeer{rawclient.Upgrade(t, rig.Value(dial(t.Context(), "tcp", l.Addr().String())), upgradeRequest)}
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
