package httpclient

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of a pool of connections, and of what a server may send before the
// body.
const (
	maxIdleConns        = 64
	maxIdleConnsPerHost = 8
	idleTimeout         = 90 * time.Second
	maxResponseHeader   = 512 << 10 // bytes
)

// More bounds, for HTTP/2 only. With HTTP/1.1 an unread body stays in the
// socket; with HTTP/2 it is buffered in this process. And a dead connection shows
// only to those who probe it, since no request ends it.
const (
	// maxUnread is how much of a body a server may send ahead of its reader, in
	// bytes: one piece of a streamed body. With less, a connection with a round
	// trip of 50 ms would bring less than 5 MB/s.
	maxUnread = 256 << 10
	// maxUnreadOfAll bounds the unread bodies of one connection together, in
	// bytes. It is too large to be reached, on purpose. If unread bodies could use
	// it up, the other requests on the connection, which may be those of other
	// clients, would get nothing more.
	maxUnreadOfAll = 1 << 30
	// maxFrame is how much of a body comes in one frame, in bytes; each
	// connection keeps a buffer of that size. Most clients use the same value.
	maxFrame = 16 << 10
	// silence is how long a connection may be silent before a ping asks whether
	// it still works; the answer has to come within pingTimeout. With HTTP/1.1 a
	// request that times out or is cancelled takes its connection along. With
	// HTTP/2 it does not, and the next request would go out on the dead one.
	silence     = 30 * time.Second
	pingTimeout = 15 * time.Second
	// writeTimeout is how long a server may read nothing from a connection. To be
	// slow with the body of one request does not count, as long as it reads the
	// frames of the others.
	writeTimeout = 30 * time.Second
)

// newTransport returns a transport that speaks HTTP/1.1.
func newTransport(proxy Proxy) *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &http.Transport{
		Protocols: &protocols,
		Proxy:     func(r *http.Request) (*url.URL, error) { return proxy.forURL(r.URL), nil },
		// Without this a CONNECT would carry the default user agent of
		// net/http.
		ProxyConnectHeader:     http.Header{"User-Agent": {""}},
		DisableCompression:     true,
		MaxIdleConns:           maxIdleConns,
		MaxIdleConnsPerHost:    maxIdleConnsPerHost,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxResponseHeader,
	}
}

// offerHTTP2 lets a server choose HTTP/2 in the TLS handshake.
func offerHTTP2(t *http.Transport) {
	t.Protocols.SetHTTP2(true)
	t.HTTP2 = &http.HTTP2Config{
		MaxReadFrameSize:              maxFrame,
		MaxReceiveBufferPerStream:     maxUnread,
		MaxReceiveBufferPerConnection: maxUnreadOfAll,
		SendPingTimeout:               silence,
		PingTimeout:                   pingTimeout,
		WriteByteTimeout:              writeTimeout,
	}
	// MaxIdleConns does not hold for HTTP/2: net/http drops the surplus connection
	// from its list without closing it. A client that asks many servers could
	// leave thousands open until idleTimeout. So the open connections are counted
	// here, and a dial beyond the bound first closes the idle ones.
	var open atomic.Int64
	var dialer net.Dialer
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if open.Load() >= maxIdleConns {
			t.CloseIdleConnections()
		}
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		open.Add(1)
		return &counted{Conn: conn, closed: func() { open.Add(-1) }}, nil
	}
}

// counted is a connection that calls closed once, when it is closed.
type counted struct {
	net.Conn
	once   sync.Once
	closed func()
}

func (c *counted) Close() error {
	c.once.Do(c.closed)
	return c.Conn.Close()
}
