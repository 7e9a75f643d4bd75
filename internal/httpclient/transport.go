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

// Bounds of a pool of connections, and of the data that a server may send before the body.
const (
	maxIdleConns        = 64
	maxIdleConnsPerHost = 8
	idleTimeout         = 90 * time.Second
	maxResponseHeader   = 512 << 10 // bytes
)

// More bounds, for HTTP/2 only. With HTTP/1.1 an unread body stays in the socket; with HTTP/2 it is
// buffered in this process. A dead HTTP/2 connection is found only by a ping, because no request
// ends it.
const (
	// maxUnread bounds the bytes of a body that a server may send ahead of its reader: one piece of a
	// streamed body. With less, a connection with a round trip of 50 ms would reach less than 5 MB/s.
	maxUnread = 256 << 10
	// maxUnreadOfAll bounds the unread bodies of one connection together, in bytes. It is so large on
	// purpose that it is never reached. If unread bodies could use it up, the other requests on the
	// connection would get no more data, and they may belong to other clients.
	maxUnreadOfAll = 1 << 30
	// maxFrame bounds the bytes of a body in one frame. Each connection keeps a buffer of that size.
	// Most clients use the same value.
	maxFrame = 16 << 10
	// silence is the time without data after which a ping checks whether a connection still works. The
	// answer must come within pingTimeout. With HTTP/1.1 a request that times out or is cancelled also
	// ends its connection. With HTTP/2 it does not, and the next request would go out on the dead
	// connection.
	silence     = 30 * time.Second
	pingTimeout = 15 * time.Second
	// writeTimeout is the time for which a server may read nothing from a connection. A server that is
	// slow with the body of one request is not affected as long as it reads the frames of the others.
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
