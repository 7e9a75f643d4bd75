package netproxy

import (
	"bytes"
	"crypto/tls"
	"io"
	"time"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/internal/netproxy/head"
)

// maySwitch reports whether a request in a tunnel may change the protocol on its connection: to
// that of WebSocket, which services speak to whom a credential was shown. In limited mode it may
// not: nobody looks at what follows.
func (p *Proxy) maySwitch(in *inside, r *head.Request) bool {
	if !in.q.encrypt || p.cfg.Policy.Limited() || r.Method != "GET" || r.Minor == 0 || r.Length != 0 || !named(r.Fields, []byte("upgrade")) {
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

// appendSwitch puts the fields that belong to one connection back into a head that was made
// without them.
func appendSwitch(to []byte) []byte {
	return append(bytes.TrimSuffix(to, []byte("\r\n")), "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"...)
}

// relay passes on that the protocol has changed, and then what either end says.
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

// piece is how much of a relay is passed on at once: a record of TLS.
const piece = 16 << 10

// pass moves one direction to its end, and passes the end on. Other than move it cannot wait
// for the socket: what is to be read may have been decrypted already.
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
