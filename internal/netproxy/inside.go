package netproxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/execagent/execagent/internal/netproxy/head"
	"github.com/execagent/execagent/internal/netproxy/intercept"
	"github.com/execagent/execagent/internal/netproxy/mask"
	"github.com/execagent/execagent/internal/netproxy/rules"
)

// An inside is a tunnel that is looked into: its requests go to one place, which was judged when
// the tunnel was made.
type inside struct {
	q     request // of the tunnel; encrypt reports whether it is spoken with TLS
	place string
	addrs []netip.Addr
}

// intercepts reports whether a tunnel has to be looked into: in limited mode each, otherwise those
// to where a credential of the command may go. Without credentials there is no authority that the
// command trusts.
func (p *Proxy) intercepts(q request) bool {
	if p.cfg.Credentials == nil || p.cfg.Authority == nil || q.Protocol != rules.Connect && q.Protocol != rules.SOCKS5TCP {
		return false
	}
	return p.cfg.Policy.Limited() || p.bound(q, true) || p.bound(q, false)
}

func (p *Proxy) bound(q request, encrypted bool) bool {
	return p.cfg.Credentials.Bound(encrypted, q.Host, q.Port)
}

// look serves a tunnel that is to be looked into. What the command says first shows whether it
// can be: HTTP in TLS, or plain where a credential may go without. Other protocols pass, but
// not in limited mode.
func (p *Proxy) look(q request, t *tunnel, from *head.Reader, l *link) {
	g, ok := p.hear(q, t, from)
	if !ok {
		return
	}
	defer g.release()
	conn := &replayed{t.here, io.MultiReader(bytes.NewReader(g.said), t.here)}
	limited := p.cfg.Policy.Limited()
	switch {
	case g.encrypted() && (limited || p.bound(q, true)):
		p.lookEncrypted(q, conn, l)
	case !g.encrypted() && p.bound(q, false):
		p.lookPlain(q, conn, l)
	case limited:
		p.report(q, rules.Verdict{Decision: rules.Deny, Scope: rules.ScopeNonDomain, Source: rules.SourceMode, Reason: rules.ReasonMITMRequired}, false)
	default:
		t.serve(l, func() bool {
			_, err := t.there.Write(g.said)
			return err == nil
		})
	}
}

// lookPlain serves the requests in a tunnel without TLS.
func (p *Proxy) lookPlain(q request, conn stream, l *link) {
	c := &client{p: p, conn: conn, in: head.NewReader(conn).Within(p.heads), name: q.client, to: l, inside: &inside{q, l.place, l.addrs}}
	c.serveAll()
}

// lookEncrypted speaks TLS with the command, and then serves its requests.
func (p *Proxy) lookEncrypted(q request, conn stream, l *link) {
	config := p.cfg.Authority.Config(q.Host)
	if p.http2.Add(1) > maxHTTP2 {
		config.NextProtos = []string{"http/1.1"} // which needs less memory
	}
	defer p.http2.Add(-1)
	secure := tls.Server(conn, config)
	if conn.SetDeadline(time.Now().Add(p.times.head)) != nil || secure.HandshakeContext(p.ctx) != nil || conn.SetDeadline(time.Time{}) != nil {
		return
	}
	q.encrypt = true
	in := &inside{q, l.place, l.addrs}
	if secure.ConnectionState().NegotiatedProtocol == "h2" {
		p.lookHTTP2(in, secure, l)
		return
	}
	ctx, cancel := context.WithTimeout(p.ctx, dialTime)
	defer cancel()
	if l.encrypt(ctx, q.Host, p.cfg.Roots()) != nil {
		p.cut(l)
		l = nil // the first request tries again, and has an answer if that fails too
	}
	s := secured{secure, conn}
	c := &client{p: p, conn: s, in: head.NewReader(s).Within(p.heads), name: q.client, to: l, inside: in}
	c.serveAll()
}

// lookHTTP2 serves the requests of a connection on which HTTP/2 was agreed.
func (p *Proxy) lookHTTP2(in *inside, secure *tls.Conn, l *link) {
	var first atomic.Pointer[link]
	if len(l.in.Buffered()) == 0 {
		first.Store(l)
	}
	intercept.Serve(p.ctx, intercept.Stream{
		Conn:  secure,
		Host:  in.q.Host,
		Port:  in.q.Port,
		Roots: p.cfg.Roots(),
		Dial: func(ctx context.Context) (net.Conn, error) {
			if l := first.Swap(nil); l != nil {
				return l.raw, nil
			}
			q := in.q
			q.encrypt = false // package intercept speaks it
			l, err := p.connect(ctx, q, in.place, in.addrs)
			if err != nil {
				return nil, err
			}
			return held{l.raw, p}, nil
		},
		Judge: func(method string) bool { return !p.cfg.Policy.Limited() || rules.Reads(method) },
		Refuse: func(w http.ResponseWriter, r *http.Request) {
			a := p.refuseMethod(in, r.Method)
			w.Header().Set("Content-Type", a.kind)
			w.Header().Set("X-Proxy-Error", a.header)
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write(a.body) // whoever has gone does not need it
		},
		Restore: func(path, field, value string) string {
			return p.cfg.Credentials.Restore(mask.Destination{TLS: true, Host: in.q.Host, Port: in.q.Port, Path: path}, field, value)
		},
	})
}

// refuseMethod refuses a request in a tunnel that limited mode does not let through.
func (p *Proxy) refuseMethod(in *inside, method string) ownResponse {
	q := in.q
	q.Method = method
	v := rules.Verdict{Decision: rules.Deny, Scope: rules.ScopeNonDomain, Source: rules.SourceMode, Reason: rules.ReasonMethodNotAllowed}
	p.report(q, v, false)
	return refusedTunnel(&refusal{Verdict: v})
}

// destination finds out where a request in the tunnel goes: to the tunnel's destination, or
// nowhere.
func (in *inside) destination(r *head.Request) (destination, error) {
	if r.Method == "CONNECT" {
		return destination{}, otherPlace
	}
	usual := uint16(80)
	if in.q.encrypt {
		usual = 443
	}
	d, err := destinationAt(r, usual)
	switch {
	case err == missingHost && !d.named && r.Target[0] == '/':
		d.host, d.port = in.q.Host, in.q.Port // of HTTP/1.0
	case err != nil:
		return d, err
	case d.host != in.q.Host || d.port != in.q.Port:
		return d, otherPlace
	}
	d.encrypt = in.q.encrypt
	return d, nil
}

const otherPlace misdirected = "host mismatch"

// reach returns a link to the tunnel's destination: the given one, if it can be used again.
func (in *inside) reach(p *Proxy, have *link) (*link, *refusal) {
	if have != nil && have.alive() {
		return have, nil
	}
	l, err := p.connect(p.ctx, in.q, in.place, in.addrs)
	if err != nil {
		return nil, &refusal{failed: true}
	}
	return l, nil
}

// restore puts credentials into the fields of a request that goes to where they belong. One that
// has its own fields as the answer gets none.
func (p *Proxy) restore(method string, fields []head.Field, d destination) {
	if p.cfg.Credentials == nil || method == http.MethodTrace {
		return
	}
	path, _, _ := bytes.Cut(d.path, []byte("?"))
	to := mask.Destination{TLS: d.encrypt, Host: d.host, Port: d.port, Path: string(path)}
	if !p.cfg.Credentials.Bound(to.TLS, to.Host, to.Port) {
		return
	}
	for i, f := range fields {
		fields[i].Value = []byte(p.cfg.Credentials.Restore(to, string(f.Name), string(f.Value)))
	}
}

// replayed is a connection of which something has been read already.
type replayed struct {
	stream
	from io.Reader
}

func (r *replayed) Read(b []byte) (int, error) { return r.from.Read(b) }

// secured is TLS on a connection, whose end is looked for below it.
type secured struct {
	*tls.Conn
	raw stream
}

func (s secured) SyscallConn() (syscall.RawConn, error) { return s.raw.SyscallConn() }

// held is a connection that the proxy forgets when it is closed.
type held struct {
	net.Conn
	p *Proxy
}

func (h held) Close() error {
	h.p.drop(h.Conn)
	return nil
}
