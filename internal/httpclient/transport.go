package httpclient

import (
	"context"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/execagent/execagent/internal/conns"
	"github.com/execagent/execagent/internal/share"
)

// Bounds of the connections that wait for the next request, and of the data that a server may send
// before the body.
const (
	maxIdleConns        = 64  // of one client
	maxIdleConnsOfAll   = 192 // of all clients; less where the process may have few descriptors
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
	// connection would get no more data.
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
func (c *Client) newTransport() *http.Transport {
	proxy := c.shared.config.Proxy
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &http.Transport{
		Protocols: &protocols,
		Proxy:     func(r *http.Request) (*url.URL, error) { return proxy.forURL(r.URL), nil },
		// Without this a CONNECT would carry the default user agent of
		// net/http.
		ProxyConnectHeader:     http.Header{"User-Agent": {""}},
		DialContext:            c.dial,
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
}

// admitted is the key of the Dial in the context of a request, which the context of its dial has too.
type admitted struct{}

// dial connects. MaxIdleConns does not hold for HTTP/2: net/http drops the surplus connection from its
// list without closing it. A client that asks many servers could leave thousands open until
// idleTimeout. It does not hold for several clients either. So the open connections are counted here,
// and a dial beyond a bound first closes the idle ones.
func (c *Client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if c.open.Load() >= maxIdleConns {
		c.closeIdle()
	}
	for _, other := range c.shared.crowded(c) {
		other.closeIdle()
	}
	var conn net.Conn
	var err error
	if dial, ok := ctx.Value(admitted{}).(Dial); ok {
		conn, err = dial(ctx)
	} else {
		conn, err = conns.Dial(ctx, network, address)
	}
	if err != nil {
		return nil, err
	}
	c.count(1)
	return &counted{Conn: conn, closed: func() { c.count(-1) }}, nil
}

// crowded returns the clients that have made connections, if all together have too many. It notes
// that c makes one.
func (s *Clients) crowded(c *Client) []*Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !c.closed {
		s.used[c] = struct{}{}
	}
	if s.open < int(min(maxIdleConnsOfAll, max(share.Limit()/16, 8))) {
		return nil
	}
	return slices.Collect(maps.Keys(s.used))
}

func (c *Client) count(n int) {
	c.open.Add(int64(n))
	c.shared.mu.Lock()
	defer c.shared.mu.Unlock()
	c.shared.open += n
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
