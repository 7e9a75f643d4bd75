package httpclient

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
)

// maxRedirects is the number of redirects that are followed, as in the reference. One more is an
// error (rpc.md 6).
const maxRedirects = 10

// Config configures a Client. The zero value sends no environment variable, uses no proxy and
// trusts the roots of the system.
type Config struct {
	// Env reads a variable of this process for Header.ValueEnvVar.
	Env func(name string) (string, bool)
	// Denied reports whether a variable must never leave the process, whatever
	// the case of its name.
	Denied func(name string) bool
	// Bound reports whether a variable that is not Denied may go to a URL. Nil: it may go everywhere.
	Bound func(name string, to *url.URL) bool
	// Admit, if set, judges each request to HOST:PORT, and those to which it is redirected. host is the
	// Host header if the client gives one, and path is escaped. It returns a function that connects to
	// the host if no proxy does. Its error refuses the request.
	Admit func(ctx context.Context, address, host, method, path string) (Dial, error)
	// Proxy selects the proxy of each request; see ProxyFromEnv.
	Proxy Proxy
	// RootCAs, if set, replaces the trusted roots.
	RootCAs *x509.CertPool
}

// Dial connects to the host that was admitted.
type Dial func(context.Context) (net.Conn, error)

// Clients has what the clients of one program share. All methods may be called concurrently.
type Clients struct {
	config Config
	roots  func() *x509.CertPool // reading them takes milliseconds

	mu   sync.Mutex // guards the fields below
	open int        // connections of all clients
	used map[*Client]struct{}
}

// NewClients returns the maker of clients.
func NewClients(config Config) *Clients {
	c := &Clients{config: config, used: map[*Client]struct{}{}}
	c.roots = sync.OnceValue(func() *x509.CertPool {
		if c.config.RootCAs != nil {
			return c.config.RootCAs
		}
		return TrustedRoots()
	})
	return c
}

// New returns a client, which shares no connection with another. The caller must close it.
func (s *Clients) New() *Client { return &Client{shared: s} }

// A Client sends requests. It keeps idle connections for later requests; Close drops them. A server
// may tie to a connection who uses it, so one client is for one user. All methods may be called
// concurrently.
type Client struct {
	shared *Clients

	open   atomic.Int64 // connections
	closed bool         // guarded by shared.mu

	mu sync.Mutex // guards the fields below
	// Each is built for the first request that needs it. The last two are for requests that need TLS,
	// to the server or to the proxy: secure offers HTTP/2, secure1 only HTTP/1.1.
	plain, secure, secure1 *http.Transport
}

// Close drops the idle connections. Running requests and bodies continue until they end or their
// context ends.
func (c *Client) Close() {
	c.closeIdle()
	c.shared.mu.Lock()
	defer c.shared.mu.Unlock()
	c.closed = true
	delete(c.shared.used, c)
}

func (c *Client) closeIdle() {
	c.mu.Lock()
	all := [...]*http.Transport{c.plain, c.secure, c.secure1}
	c.mu.Unlock()
	for _, t := range all {
		if t != nil {
			t.CloseIdleConnections()
		}
	}
}

// transport returns the transport for one request of a chain of redirects.
func (c *Client) transport(h *hop) *http.Transport {
	proxy := c.shared.config.Proxy.forURL(h.url)
	// In its TLS handshake with a proxy, net/http offers the same protocols as
	// with the server, but it can speak only HTTP/1.1 with a proxy. So a request
	// through such a proxy takes the transport that never offers HTTP/2.
	tlsProxy := proxy != nil && proxy.Scheme == "https"
	secure := h.url.Scheme == "https" || tlsProxy
	c.mu.Lock()
	defer c.mu.Unlock()
	slot := &c.plain
	switch {
	case secure && (tlsProxy || h.needsHTTP1()):
		slot = &c.secure1
	case secure:
		slot = &c.secure
	}
	if *slot == nil {
		*slot = c.newTransport()
		if secure {
			// CipherSuites stays unset, which allows the CBC suites of TLS 1.2 too: some
			// servers have no others, and the caller has chosen the server.
			(*slot).TLSClientConfig = &tls.Config{RootCAs: c.shared.roots(), MinVersion: tls.VersionTLS12}
		}
		if slot == &c.secure {
			offerHTTP2(*slot)
		}
	}
	return *slot
}

// Do sends a request, and follows redirects if req.FollowRedirects is set. It returns after the
// headers of the final answer have arrived. The caller closes the body. Every status is a success.
// Errors are *ParamError or *TransportError. The timeout of the request, and ctx, cover the body
// too.
func (c *Client) Do(ctx context.Context, req *Request) (*Response, error) {
	first, err := c.prepare(req)
	if err != nil {
		return nil, err
	}
	cancel := context.CancelFunc(nil)
	if req.Timeout != nil {
		ctx, cancel = context.WithTimeoutCause(ctx, *req.Timeout, errTimeout)
	} else {
		ctx, cancel = context.WithCancel(ctx)
	}
	resp, err := c.follow(ctx, first, req.FollowRedirects)
	if err != nil {
		cancel()
		return nil, err
	}
	return newResponse(ctx, cancel, resp, req.Room), nil
}

var errTimeout = errors.New("timed out")

// follow sends h, and then the requests to which the answers redirect.
func (c *Client) follow(ctx context.Context, h *hop, redirects bool) (*http.Response, error) {
	for n := 0; ; n++ {
		resp, err := c.send(ctx, h)
		if err != nil {
			return nil, &TransportError{URL: h.url.String(), Err: err}
		}
		if !redirects {
			return resp, nil
		}
		next, err := h.redirect(resp)
		if next == nil && err == nil {
			return resp, nil
		}
		discard(resp)
		if err == nil && n == maxRedirects {
			err = errors.New("too many redirects")
		}
		if err != nil {
			return nil, &TransportError{URL: h.url.String(), Err: err}
		}
		next.secret = slices.DeleteFunc(slices.Clone(next.secret), func(s secret) bool {
			may := c.may(next, s.variable)
			if !may {
				next.drop(s.header)
			}
			return !may
		})
		h = next
	}
}

func (c *Client) send(ctx context.Context, h *hop) (*http.Response, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx) // a timeout of zero fails before anything is sent
	}
	if admit := c.shared.config.Admit; admit != nil {
		path := h.url.EscapedPath()
		dial, err := admit(ctx, net.JoinHostPort(h.url.Hostname(), port(h.url)), h.host, h.method, cmp.Or(path, "/"))
		if err != nil {
			return nil, err
		}
		if c.shared.config.Proxy.forURL(h.url) == nil {
			ctx = context.WithValue(ctx, admitted{}, dial)
		}
	}
	r, err := h.request(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := c.transport(h).RoundTrip(r)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	if resp.StatusCode < 100 || resp.StatusCode > 999 {
		resp.Body.Close()
		return nil, errors.New("malformed status code")
	}
	return resp, nil
}

// discard closes an answer that is not used. It first reads a short body to its end, because
// net/http uses a connection again only after the whole body was read.
func discard(resp *http.Response) {
	const little = 2 << 10
	if resp.ContentLength <= little {
		_, _ = io.CopyN(io.Discard, resp.Body, little) // after an error the connection is not used again
	}
	resp.Body.Close()
}
