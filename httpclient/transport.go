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

// The bounds of a pool of connections and of what a server may send before the
// body.
const (
	maxIdleConns        = 64
	maxIdleConnsPerHost = 8
	idleTimeout         = 90 * time.Second
	maxResponseHeader   = 512 << 10 // bytes
)

// What HTTP/2 adds to that: room of our own, where HTTP/1.1 has none but that
// of the socket, and connections whose end has to be found out.
const (
	// maxUnread is how much of a body a server may send ahead of its reader, in
	// bytes: as much as a streamed body takes in one piece. It is the smallest
	// room that still brings 5 MB/s over a distance of 50 ms.
	maxUnread = 256 << 10
	// maxUnreadOfAll bounds the bodies of one connection together, and is out
	// of reach on purpose. Below the sum of them, bodies that nobody reads
	// would stop those of other clients on the same connection.
	maxUnreadOfAll = 1 << 30
	// maxFrame is how much of a body comes in one frame, in bytes, for which
	// each connection keeps a buffer. It is what most clients have.
	maxFrame = 16 << 10
	// silence is how long a connection may be silent before it is asked whether
	// it still works, by a ping, which has to be answered within pingTimeout. A
	// timeout or a cancelled request says nothing of it: with HTTP/1.1 both end
	// the connection, here the next request would go out on it.
	silence     = 30 * time.Second
	pingTimeout = 15 * time.Second
	// writeTimeout is how long a connection may take nothing at all, not even
	// of another request. A server that is slow to read a body lets the rest of
	// the connection go on.
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
	// MaxIdleConns holds connections of HTTP/1.1 alone: net/http forgets one of
	// HTTP/2 that is too many, and does not close it. One client could then
	// leave thousands behind, to a server each, for the time of idleTimeout.
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

// counted is a connection that says once that it is closed.
type counted struct {
	net.Conn
	once   sync.Once
	closed func()
}

func (c *counted) Close() error {
	c.once.Do(c.closed)
	return c.Conn.Close()
}
