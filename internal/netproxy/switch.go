package netproxy

import (
	"bytes"
	"crypto/tls"
	"io"
	"time"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/internal/netproxy/head"
)

// maySwitch reports whether a request in a tunnel may change the protocol on its connection. Only
// WebSocket is allowed, because services that need a credential use it. In limited mode no change
// is allowed, because the proxy does not look at the bytes after the change.
func (p *Proxy) maySwitch(in *inside, r *head.Request) bool {
	if !in.q.encrypt || p.policy().Limited() || r.Method != "GET" || r.Minor == 0 || r.Length != 0 || !named(r.Fields, []byte("upgrade")) {
		return false
	}
	found := 0
	for _, f := range r.Fields {
		if f.Is("upgrade") {
			if !bytes.EqualFold(f.Value, []byte("websocket")) {
				return false
			}
			found++
		}
	}
	return found == 1
}

// appendSwitch adds the fields of a protocol change to a head. appendFields leaves out these fields
// because they concern only one connection.
func appendSwitch(to []byte) []byte {
	return append(bytes.TrimSuffix(to, []byte("\r\n")), "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"...)
}

// relay forwards the answer that changes the protocol, and then the bytes of both ends.
func (x *exchange) relay(a *head.Response) {
	defer x.keep(nil)
	out := appendSwitch(appendResponse(buffer.Get(outgoing), a, true, false))
	_, err := x.conn.Write(out)
	buffer.Recycle(out)
	if err != nil {
		return
	}
	t := &tunnel{here: x.conn, there: secured{x.link.conn.(*tls.Conn), x.link.raw.(stream)}, idle: x.p.times.tunnel}
	down := make(chan struct{})
	go func() {
		defer close(down)
		t.pass(t.here, t.there, x.link.in)
	}()
	t.pass(t.there, t.here, x.in)
	<-down
}

// piece is the size of the buffer of a relay, in bytes: one TLS record.
const piece = 16 << 10

// pass moves the bytes of one direction until the stream ends, and then closes the other side for
// writing. Unlike move, pass cannot wait for the socket, because the next bytes may have been
// decrypted already.
func (t *tunnel) pass(to, from stream, r io.Reader) {
	b := buffer.Get(piece)[:piece]
	defer buffer.Recycle(b)
	for {
		before := t.moves.Load()
		if from.SetReadDeadline(time.Now().Add(t.idle)) != nil {
			break
		}
		n, err := r.Read(b)
		if n > 0 {
			t.moves.Add(1)
			if _, err := to.Write(b[:n]); err != nil {
				break
			}
		}
		if err == nil || isTimeout(err) && t.moves.Load() != before {
			continue
		}
		if err == io.EOF && to.CloseWrite() == nil {
			return
		}
		break
	}
	t.end()
}
