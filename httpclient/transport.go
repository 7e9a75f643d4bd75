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

// Bounds that HTTP/2 needs besides. It buffers bodies in this process, where
// HTTP/1.1 leaves them in the socket, and the end of a connection has to be
// found out.
const (
	// maxUnread is how much of a body a server may send ahead of its reader, in
	// bytes: as much as a streamed body takes in one piece. It is the smallest
	// room that still brings 5 MB/s over a distance of 50 ms.
	maxUnread = 256 << 10
	// maxUnreadOfAll bounds the unread bodies of one connection together, in
	// bytes. It is out of reach on purpose: below the sum of maxUnread of all,
	// bodies that nobody reads would stop those of other clients on the same
	// connection.
	maxUnreadOfAll = 1 << 30
	// maxFrame is how much of a body comes in one frame, in bytes. Each
	// connection keeps a buffer of that size. Most clients have this one.
	maxFrame = 16 << 10
	// silence is how long a connection may be silent before a ping asks whether
	// it still works; the answer has to come within pingTimeout. With HTTP/1.1
	// a timeout or a cancelled request ends the connection. Here it does not,
	// and the next request would go out on a dead one.
	silence     = 30 * time.Second
	pingTimeout = 15 * time.Second
	// writeTimeout is how long a connection may take nothing at all, of any
	// request. A server that is slow to read one body does not stop the others.
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
	// MaxIdleConns counts connections of HTTP/1.1 only: where one of HTTP/2 is
	// too many, net/http forgets it and does not close it. A client could leave
	// thousands of them behind for the time of idleTimeout, each to another
	// server.
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
