package httpclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"sync"
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
	// Proxy selects the proxy of each request; see ProxyFromEnv.
	Proxy Proxy
	// RootCAs, if set, replaces the trusted roots.
	RootCAs *x509.CertPool
}

// A Client sends requests. It keeps idle connections for later requests; Close drops them. All
// methods may be called concurrently.
type Client struct {
	config Config
	plain  *http.Transport

	mu sync.Mutex
	// Both are for requests that need TLS, to the server or to the proxy: secure offers HTTP/2,
	// secure1 only HTTP/1.1. Each is built for the first request that needs it, because reading the
	// roots takes milliseconds.
	secure, secure1 *http.Transport
}

// New returns a client. The caller must close it.
func New(config Config) *Client {
	return &Client{config: config, plain: newTransport(config.Proxy)}
}

// Close drops the idle connections. Running requests and bodies continue until they end or their
// context ends.
func (c *Client) Close() {
	c.plain.CloseIdleConnections()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range []*http.Transport{c.secure, c.secure1} {
		if t != nil {
			t.CloseIdleConnections()
		}
	}
}

// transport returns the transport for one request of a chain of redirects.
func (c *Client) transport(h *hop) *http.Transport {
	proxy := c.config.Proxy.forURL(h.url)
	// In its TLS handshake with a proxy, net/http offers the same protocols as
	// with the server, but it can speak only HTTP/1.1 with a proxy. So a request
	// through such a proxy takes the transport that never offers HTTP/2.
	tlsProxy := proxy != nil && proxy.Scheme == "https"
	if h.url.Scheme != "https" && !tlsProxy {
		return c.plain
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if tlsProxy || h.needsHTTP1() {
		if c.secure1 == nil {
			c.secure1 = newTransport(c.config.Proxy)
			c.secure1.TLSClientConfig = c.tls(c.secure)
		}
		return c.secure1
	}
	if c.secure == nil {
		c.secure = newTransport(c.config.Proxy)
		c.secure.TLSClientConfig = c.tls(c.secure1)
		offerHTTP2(c.secure)
	}
	return c.secure
}

// tls returns the configuration of a transport for TLS. The two transports for TLS share their
// roots, so that the roots are read once. other is the other transport if it was already built, or
// nil.
func (c *Client) tls(other *http.Transport) *tls.Config {
	roots := c.config.RootCAs
	switch {
	case roots != nil:
	case other != nil:
		roots = other.TLSClientConfig.RootCAs
	default:
		roots = TrustedRoots()
	}
	// CipherSuites stays unset, which allows the CBC suites of TLS 1.2 too: some
	// servers have no others, and the caller has chosen the server.
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
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
	return newResponse(ctx, cancel, resp), nil
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
		h = next
	}
}

func (c *Client) send(ctx context.Context, h *hop) (*http.Response, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx) // a timeout of zero fails before anything is sent
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
