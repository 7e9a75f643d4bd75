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

// A client is one connection of the command to the proxy for HTTP.
type client struct {
	p    *Proxy
	conn stream
	in   *head.Reader
	name string // its address
	to   *link  // of the last plain request, if it can be used again

	inside *inside // the tunnel whose requests these are; nil outside of one
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

// serve answers the next request. It returns false if no other can follow.
func (c *client) serve() bool {
	q, err := c.read()
	if err != nil {
		if _, ok := errors.AsType[head.MalformedError](err); ok || err == head.ErrTooLarge {
			c.dismiss("", malformed(""))
		}
		return false // gone, too slow, or HTTP/2
	}
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

// connect makes a tunnel, and serves it to its end. It is answered when there is a connection
// to its destination, so that the command learns of a failure. Nothing follows a tunnel that
// was refused: the command may have sent what is meant for its other end.
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

// request returns what the funnel is asked.
func (c *client) request(protocol string, r *head.Request, d destination) request {
	return request{rules.Request{Protocol: protocol, Host: d.host, Port: d.port, Method: r.Method}, c.name, d.encrypt}
}

// exchange answers a plain request, from its destination or with a refusal.
func (c *client) exchange(r *head.Request, d destination) bool {
	q := c.request(rules.HTTP, r, d)
	body := c.in.Body(r.Length)
	if c.inside == nil && has(r.Fields, "x-unix-socket") {
		return c.turnAway(r, body, c.p.refuseSocket(q))
	}
	var l *link
	var refused *refusal
	if c.inside != nil {
		if _, refused := c.p.cfg.Policy.JudgeMethod(q.Request, false); refused {
			return c.turnAway(r, body, c.p.refuseMethod(c.inside, r.Method))
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
	c.p.restore(r.Method, r.Fields, d)
	x := exchange{client: c, q: q, method: r.Method, minor: r.Minor, last: r.Minor == 0 || closes(r.Fields), length: r.Length, body: body, link: l}
	out := appendRequest(buffer.Get(outgoing), r, d, l.hop)
	if x.switching = c.inside != nil && c.p.maySwitch(c.inside, r); x.switching {
		out = appendSwitch(out)
	}
	return x.run(out)
}

// outgoing is room for the usual head on its way out.
const outgoing = 4 << 10

// refuseSocket refuses a request for a UNIX socket: the proxy never speaks to one.
func (p *Proxy) refuseSocket(q request) ownResponse {
	q.Host, q.Port = "unix-socket", 0
	v := rules.Verdict{Decision: rules.Deny, Scope: rules.ScopeNonDomain, Source: rules.SourceProxy, Reason: rules.ReasonUnixSocket}
	if mode, refused := p.cfg.Policy.JudgeMethod(q.Request, false); refused {
		p.report(q, mode, false)
		return refusedSocket(q)
	}
	p.report(q, v, false)
	return ownResponse{status: "501 Not Implemented", kind: plainText, body: []byte("unix sockets unsupported")}
}

// keep has the next request use the link, and cuts the one before.
func (c *client) keep(l *link) {
	if c.to != nil && c.to != l {
		c.p.cut(c.to)
	}
	c.to = l
}

// turnAway answers a request that goes nowhere. Another may follow if the body of this one has
// an end within bounds: its bytes never become a request.
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

// hangUp ends the connection so that the last answer arrives: a socket that is closed with
// unread bytes resets the connection, and the answer would be lost with it.
func (c *client) hangUp() {
	_ = c.conn.CloseWrite()
	if c.conn.SetReadDeadline(time.Now().Add(c.p.times.drain)) == nil {
		_, _ = io.CopyN(io.Discard, c.conn, maxUnread)
	}
}

// gone reports whether the command has hung up.
func (c *client) gone() bool { return ended(c.conn) }

// has reports whether there is a field of this name, which is in lower case.
func has(fields []head.Field, name string) bool {
	return slices.ContainsFunc(fields, func(f head.Field) bool { return f.Is(name) })
}

// isTimeout reports whether a deadline has passed.
func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
