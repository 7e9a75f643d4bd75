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

// An inside is a tunnel that the proxy looks into. All its requests go to one place, which was
// judged when the tunnel was made.
type inside struct {
	q     request // the request that made the tunnel; encrypt is true if the tunnel carries TLS
	place string
	addrs []netip.Addr
	end   func() // ends the tunnel
	// answered: the Decider has allowed the host for this tunnel.
	answered bool
}

func (p *Proxy) inside(q request, t *tunnel, l *link) *inside {
	return &inside{q: q, place: l.place, addrs: l.addrs, end: t.end, answered: l.answered}
}

// judgesInside reports whether request rules judge each request in the tunnel.
func (p *Proxy) judgesInside(in *inside) bool {
	return p.policy().HasRequestRulesFor(in.q.Host, in.q.Port)
}

// unseen is the verdict on a tunnel whose requests have to be judged, but cannot be seen.
var unseen = rules.Verdict{Decision: rules.Deny, Scope: rules.ScopeNonDomain, Source: rules.SourceBaseline, Reason: rules.ReasonMITMRequired}

// intercepts reports whether the proxy has to look into a tunnel. In limited mode it looks into
// each tunnel, otherwise into tunnels to destinations that may receive a credential of the command or
// that have request rules. Without Authority it looks into none, because the command trusts no
// certificate of the proxy.
func (p *Proxy) intercepts(q request) bool {
	if p.cfg.Authority == nil || q.Protocol != rules.Connect && q.Protocol != rules.SOCKS5TCP {
		return false
	}
	return p.policy().Limited() || p.bound(q, true) || p.bound(q, false) || p.policy().HasRequestRulesFor(q.Host, q.Port)
}

func (p *Proxy) bound(q request, encrypted bool) bool {
	return p.cfg.Credentials != nil && p.cfg.Credentials.Bound(encrypted, q.Host, q.Port)
}

// look serves a tunnel that the proxy has to look into. The first bytes of the command show the
// protocol. The proxy can look into HTTP in TLS, and into plain HTTP if a credential may go there
// without TLS, or if the host has request rules. Other protocols pass, but not in limited mode, and not
// to a host that has request rules.
func (p *Proxy) look(q request, t *tunnel, from *head.Reader, l *link) {
	g, ok := p.hear(q, t, from)
	if !ok {
		return
	}
	defer g.release()
	conn := &replayed{t.here, io.MultiReader(bytes.NewReader(g.said), t.here)}
	limited, ruled := p.policy().Limited(), p.policy().HasRequestRulesFor(q.Host, q.Port)
	switch {
	case g.encrypted() && (limited || ruled || p.bound(q, true)):
		p.lookEncrypted(q, t, conn, l)
	case !g.encrypted() && ruled && isForeign(g.said):
		p.refuse(q, unseen)
	case !g.encrypted() && (ruled && !limited || p.bound(q, false)):
		p.lookPlain(q, t, conn, l)
	case limited:
		p.report(q, rules.Verdict{Decision: rules.Deny, Scope: rules.ScopeNonDomain, Source: rules.SourceMode, Reason: rules.ReasonMITMRequired}, false)
	default:
		if !p.becomesOpaque(t.standing) {
			return
		}
		t.serve(l, func() bool {
			_, err := t.there.Write(g.said)
			return err == nil
		})
	}
}

// isForeign reports whether the first line is complete and does not begin a request of HTTP/1. For such a
// line the proxy must not wait for the rest of a head, because the rest never comes.
func isForeign(said []byte) bool {
	line, _, complete := bytes.Cut(said, []byte("\n"))
	line = bytes.TrimSuffix(line, []byte("\r"))
	return complete && len(line) > 0 && !bytes.HasSuffix(line, []byte(" HTTP/1.1")) && !bytes.HasSuffix(line, []byte(" HTTP/1.0"))
}

// lookPlain serves the requests in a tunnel without TLS.
func (p *Proxy) lookPlain(q request, t *tunnel, conn stream, l *link) {
	c := &client{p: p, conn: conn, in: head.NewReader(conn).Within(p.heads), name: q.client, to: l, inside: p.inside(q, t, l)}
	c.serveAll()
}

// lookEncrypted speaks TLS with the command, and then serves the requests inside.
func (p *Proxy) lookEncrypted(q request, t *tunnel, conn stream, l *link) {
	config := p.cfg.Authority.Config(q.Host)
	if p.http2.Add(1) > maxHTTP2 {
		config.NextProtos = []string{"http/1.1"} // because HTTP/1 needs less memory
	}
	defer p.http2.Add(-1)
	secure := tls.Server(conn, config)
	if conn.SetDeadline(time.Now().Add(p.times.head)) != nil {
		return
	}
	if err := secure.HandshakeContext(p.ctx); err != nil {
		if p.ctx.Err() == nil && p.policy().HasRequestRulesFor(q.Host, q.Port) {
			p.refuse(q, unseen) // for instance, the command does not trust the certificate
		}
		return
	}
	if conn.SetDeadline(time.Time{}) != nil {
		return
	}
	q.encrypt = true
	in := p.inside(q, t, l)
	if secure.ConnectionState().NegotiatedProtocol == "h2" {
		p.lookHTTP2(in, secure, l)
		return
	}
	ctx, cancel := context.WithTimeout(p.ctx, dialTime)
	defer cancel()
	if l.encrypt(ctx, q.Host, p.cfg.Roots()) != nil {
		p.cut(l)
		l = nil // the first request connects again, and is answered if that fails too
	}
	s := secured{secure, conn}
	c := &client{p: p, conn: s, in: head.NewReader(s).Within(p.heads), name: q.client, to: l, inside: in}
	c.serveAll()
}

// lookHTTP2 serves the requests of a connection that has negotiated HTTP/2.
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
			q.encrypt = false // because package intercept speaks TLS itself
			l, err := p.connect(ctx, q, in.place, in.addrs)
			if err != nil {
				return nil, err
			}
			return held{l.raw, p}, nil
		},
		Judge: func(r *http.Request) http.HandlerFunc {
			var a ownResponse
			if p.policy().Limited() && !rules.Reads(r.Method) {
				a = p.refuseMethod(in, r.Method)
			} else if s, refused := p.judgeInside(r.Context(), in, r.Method, r.URL.EscapedPath()); refused != nil {
				a = refusedTunnel(refused)
			} else {
				begun := p.begins(s)
				context.AfterFunc(r.Context(), s.over) // the context ends with the request
				if begun {
					return nil
				}
				return func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) } // the tunnel has ended
			}
			return func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", a.kind)
				w.Header().Set("X-Proxy-Error", a.header)
				w.WriteHeader(http.StatusForbidden)
				_, _ = w.Write(a.body) // an error means that the command has hung up
			}
		},
		Restore: func(path, field, value string) string {
			if p.cfg.Credentials == nil {
				return value
			}
			return p.cfg.Credentials.Restore(mask.Destination{TLS: true, Host: in.q.Host, Port: in.q.Port, Path: path}, field, value)
		},
	})
}

// judgeInside judges a request in a tunnel, if its host has request rules. path is escaped and has no query.
// Questions and reports about the request have the protocol of plain HTTP, or in TLS that of a tunnel. If
// the request may go on, the caller passes the standing to Proxy.begins, also without such rules: the next
// policy may have some.
func (p *Proxy) judgeInside(ctx context.Context, in *inside, method, path string) (*standing, *refusal) {
	q := in.q
	q.Protocol, q.Method, q.Path, q.Answered = rules.HTTP, method, path, in.answered
	if q.encrypt {
		q.Protocol = rules.Connect
	}
	if path == "" {
		q.Path = "*" // of OPTIONS, which no rule allows
	}
	override := false
	if p.judgesInside(in) {
		var v rules.Verdict
		if v, override = p.judge(ctx, q); v.Decision != rules.Allow {
			return nil, p.refuse(q, v)
		}
		p.report(q, v, override)
	}
	return &standing{q: q, addrs: in.addrs, answered: override, end: in.end}, nil
}

// refuseMethod refuses a request in a tunnel if limited mode forbids its method.
func (p *Proxy) refuseMethod(in *inside, method string) ownResponse {
	q := in.q
	q.Method = method
	v := rules.Verdict{Decision: rules.Deny, Scope: rules.ScopeNonDomain, Source: rules.SourceMode, Reason: rules.ReasonMethodNotAllowed}
	p.report(q, v, false)
	return refusedTunnel(&refusal{Verdict: v})
}

// destination returns the destination of a request in the tunnel. A request for any other place
// than the tunnel's destination is an error.
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
		d.host, d.port = in.q.Host, in.q.Port // HTTP/1.0 does not require a Host field
	case err != nil:
		return d, err
	case d.host != in.q.Host || d.port != in.q.Port:
		return d, otherPlace
	}
	d.encrypt = in.q.encrypt
	return d, nil
}

const otherPlace misdirected = "host mismatch"

// reach returns a link to the tunnel's destination. It returns the given link if that can be used
// again.
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

// restore puts credentials in place of their placeholders in the fields of a request, if the
// credentials belong to the destination. TRACE gets no credentials, because the answer to TRACE
// contains the fields of the request.
func (p *Proxy) restore(method string, fields []head.Field, d destination) {
	if p.cfg.Credentials == nil || method == http.MethodTrace {
		return
	}
	to := mask.Destination{TLS: d.encrypt, Host: d.host, Port: d.port, Path: d.withoutQuery()}
	if !p.cfg.Credentials.Bound(to.TLS, to.Host, to.Port) {
		return
	}
	for i, f := range fields {
		fields[i].Value = []byte(p.cfg.Credentials.Restore(to, string(f.Name), string(f.Value)))
	}
}

// replayed is a connection of which some bytes have been read already. Its reads return these bytes
// first.
type replayed struct {
	stream
	from io.Reader
}

func (r *replayed) Read(b []byte) (int, error) { return r.from.Read(b) }

// secured is a TLS connection. SyscallConn returns the connection below TLS, on which the proxy
// checks for the end.
type secured struct {
	*tls.Conn
	raw stream
}

func (s secured) SyscallConn() (syscall.RawConn, error) { return s.raw.SyscallConn() }

// held is a connection that Close also removes from the connections of the proxy.
type held struct {
	net.Conn
	p *Proxy
}

func (h held) Close() error {
	h.p.drop(h.Conn)
	return nil
}
