package netproxy

import (
	"errors"
	"io"
	"os"
	"slices"
	"time"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/internal/netproxy/head"
	"github.com/execagent/execagent/internal/netproxy/rules"
)

// A client serves one connection of the command to the HTTP proxy.
type client struct {
	p    *Proxy
	conn stream
	in   *head.Reader
	name string // the address of the command's end of the connection
	to   *link  // the link of the last plain request, if the link can be used again

	inside *inside // the tunnel that carries the requests; nil outside of a tunnel
	heard  bool    // a request was read
}

// serveHTTP answers the requests of a connection until it ends.
func (p *Proxy) serveHTTP(conn stream) {
	c := &client{p: p, conn: conn, in: head.NewReader(conn).Within(p.heads), name: conn.RemoteAddr().String()}
	c.serveAll()
}

func (c *client) serveAll() {
	defer func() {
		c.keep(nil)
		c.in.Release()
	}()
	for c.serve() {
	}
}

// serve answers the next request. It reports whether another request may follow.
func (c *client) serve() bool {
	q, err := c.read()
	if err != nil {
		if c.inside != nil && c.p.judgesInside(c.inside) && !c.heard && (isMalformed(err) || isTimeout(err) || err == head.ErrVersion) {
			c.p.refuse(c.inside.q, unseen)
		}
		if _, ok := errors.AsType[head.MalformedError](err); ok || err == head.ErrTooLarge {
			c.dismiss("", malformed(""))
		}
		return false // the command has hung up, is too slow, or speaks HTTP/2
	}
	c.heard = true
	var d destination
	if c.inside != nil {
		d, err = c.inside.destination(q)
	} else {
		d, err = destinationOf(q)
	}
	if err != nil {
		c.dismiss(q.Method, malformed(err.Error()))
		return false
	}
	if q.Method == "CONNECT" {
		d.host = c.p.meant(d.host)
		c.connect(q, d)
		return false
	}
	return c.exchange(q, d)
}

// read reads the head of the next request.
func (c *client) read() (*head.Request, error) {
	if err := c.conn.SetReadDeadline(time.Now().Add(c.p.times.idle)); err != nil {
		return nil, err
	}
	if err := c.in.Wait(); err != nil {
		return nil, err
	}
	if err := c.conn.SetReadDeadline(time.Now().Add(c.p.times.head)); err != nil {
		return nil, err
	}
	q, err := c.in.Request()
	if err != nil {
		return nil, err
	}
	return q, c.conn.SetReadDeadline(time.Time{})
}

// connect makes a tunnel, and serves the tunnel to its end. It answers the CONNECT only after the
// connection to the destination stands, so that the command learns of a failure. After a refused
// CONNECT the connection ends, because the command may have sent bytes that are meant for the
// destination.
func (c *client) connect(r *head.Request, d destination) {
	if r.Length != 0 {
		c.dismiss(r.Method, malformed(""))
		return
	}
	q := c.request(rules.Connect, r, d)
	l, refused := c.p.reach(c.p.ctx, q, nil)
	if refused != nil {
		c.dismiss(r.Method, refusedTunnel(refused))
		return
	}
	defer c.p.cut(l)
	if _, err := c.conn.Write(append(appendDate([]byte("HTTP/1.1 200 OK\r\ndate: ")), "\r\n\r\n"...)); err != nil {
		return
	}
	c.p.tunnel(q, c.conn, c.in, l)
}

// request returns the request that Proxy.reach judges.
func (c *client) request(protocol string, r *head.Request, d destination) request {
	return request{Request: rules.Request{Protocol: protocol, Host: d.host, Port: d.port, Method: r.Method, Path: d.withoutQuery()}, client: c.name, encrypt: d.encrypt}
}

// exchange answers a plain request with the answer of the destination or with a refusal. It reports
// whether another request may follow.
func (c *client) exchange(r *head.Request, d destination) bool {
	q := c.request(rules.HTTP, r, d)
	body := c.in.Body(r.Length)
	if c.inside == nil && has(r.Fields, "x-unix-socket") {
		return c.turnAway(r, body, c.p.refuseSocket(q))
	}
	var l *link
	var refused *refusal
	var s *standing
	if c.inside != nil {
		if _, refused := c.p.policy().JudgeMethod(q.Request, false); refused {
			return c.turnAway(r, body, c.p.refuseMethod(c.inside, r.Method))
		}
		if s, refused = c.p.judgeInside(c.p.ctx, c.inside, q.Method, q.Path); refused != nil {
			return c.turnAway(r, body, refusedTunnel(refused))
		}
		q = c.inside.q
		l, refused = c.inside.reach(c.p, c.to)
	} else {
		have := c.to
		if d.encrypt {
			have = nil
		}
		l, refused = c.p.reach(c.p.ctx, q, have)
	}
	if refused != nil {
		return c.turnAway(r, body, refusedRequest(q, refused))
	}
	c.keep(l)
	if c.inside == nil {
		s = &standing{q: q, addrs: l.addrs, answered: l.answered, end: func() { _ = c.conn.Close() }}
	}
	x := exchange{client: c, stands: s, q: q, method: r.Method, minor: r.Minor, last: r.Minor == 0 || closes(r.Fields), length: r.Length, body: body, link: l}
	defer func() { x.stands.over() }()
	if !x.sends(l) {
		return false
	}
	c.p.restore(r.Method, r.Fields, d)
	out := appendRequest(buffer.Get(outgoing), r, d, l.hop)
	if x.switching = c.inside != nil && c.p.maySwitch(c.inside, r); x.switching {
		out = appendSwitch(out)
	}
	return x.run(out)
}

// outgoing is the size of a buffer for an outgoing head, in bytes. It is enough for the usual head.
const outgoing = 4 << 10

// refuseSocket refuses a request for a UNIX socket, because the proxy never connects to UNIX
// sockets.
func (p *Proxy) refuseSocket(q request) ownResponse {
	q.Host, q.Port = "unix-socket", 0
	v := rules.Verdict{Decision: rules.Deny, Scope: rules.ScopeNonDomain, Source: rules.SourceProxy, Reason: rules.ReasonUnixSocket}
	if mode, refused := p.policy().JudgeMethod(q.Request, false); refused {
		p.report(q, mode, false)
		return refusedSocket(q)
	}
	p.report(q, v, false)
	return ownResponse{status: "501 Not Implemented", kind: plainText, body: []byte("unix sockets unsupported")}
}

// keep stores the link for the next request, and cuts the link that was stored before.
func (c *client) keep(l *link) {
	if c.to != nil && c.to != l {
		c.p.cut(c.to)
	}
	c.to = l
}

// turnAway answers a request that the proxy does not forward. It reports whether another request
// may follow: only if the body of this request ends within maxUnread. The body is read and
// discarded, so that its bytes are never read as a request.
func (c *client) turnAway(r *head.Request, body *head.Body, a ownResponse) bool {
	if r.Minor == 0 || closes(r.Fields) || has(r.Fields, "expect") || r.Length > maxUnread {
		c.dismiss(r.Method, a)
		return false
	}
	if _, err := c.conn.Write(a.append(nil, r.Method, true)); err != nil {
		return false
	}
	if c.conn.SetReadDeadline(time.Now().Add(c.p.times.drain)) != nil {
		return false
	}
	_, err := io.CopyN(io.Discard, body, maxUnread)
	if err == io.EOF {
		return true
	}
	c.hangUp()
	return false
}

// dismiss sends the last answer on the connection.
func (c *client) dismiss(method string, a ownResponse) {
	if _, err := c.conn.Write(a.append(nil, method, false)); err == nil {
		c.hangUp()
	}
}

// hangUp ends the connection in a way that the last answer arrives. If a socket is closed while
// bytes are unread, the kernel resets the connection and the answer is lost.
func (c *client) hangUp() {
	_ = c.conn.CloseWrite()
	if c.conn.SetReadDeadline(time.Now().Add(c.p.times.drain)) == nil {
		_, _ = io.CopyN(io.Discard, c.conn, maxUnread)
	}
}

// gone reports whether the command has hung up.
func (c *client) gone() bool { return ended(c.conn) }

// has reports whether the fields contain a field of this name. The name is in lower case.
func has(fields []head.Field, name string) bool {
	return slices.ContainsFunc(fields, func(f head.Field) bool { return f.Is(name) })
}

// isTimeout reports whether a deadline has passed.
func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
