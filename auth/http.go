package auth

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"runtime"
	"strings"
	"time"

	"github.com/execagent/execagent/internal/build"
	"github.com/execagent/execagent/internal/conns"
	"github.com/execagent/execagent/internal/tlsconfig"
)

// Bounds of one call to a service that issues tokens (remote.md 12.6).
const (
	maxAnswer       = 1 << 20  // bytes of a body
	maxAnswerHeader = 64 << 10 // bytes
	keySetTimeout   = 10 * time.Second
	issueTimeout    = 30 * time.Second
)

// HTTPConfig configures a source's calls to the services that issue its tokens. The
// zero value is usable.
type HTTPConfig struct {
	// RootCAs, if set, replaces the trusted roots of the system.
	RootCAs *x509.CertPool
	// Proxy returns the proxy for a request. If it is nil, and for loopback
	// hosts, no proxy is used.
	Proxy func(*http.Request) (*url.URL, error)
	// UserAgent is sent with each request; empty: the one of the compatible version.
	UserAgent string
}

// originator is the name under which these services know the reference (remote.md
// 12.2, 12.6).
const originator = "codex_cli_rs"

// issuer calls the services that issue tokens: no redirects, no cookies, no
// connection kept.
type issuer struct {
	transport *http.Transport
	userAgent string
}

func newIssuer(cfg HTTPConfig) *issuer {
	i := &issuer{userAgent: cfg.UserAgent, transport: NewTransport(cfg.RootCAs, cfg.Proxy)}
	if i.userAgent == "" {
		i.userAgent = originator + "/" + build.Compatible + " (" + runtime.GOOS + "; " + runtime.GOARCH + ") unknown"
	}
	return i
}

// NewTransport returns the transport for requests with credentials: HTTP/1.1, no
// proxy for loopback hosts, headers of an answer up to 64 KiB. Like every
// transport, it follows no redirects. With nil roots it uses the roots of the
// system, with a nil proxy no proxy. The caller closes its idle connections.
func NewTransport(roots *x509.CertPool, proxy func(*http.Request) (*url.URL, error)) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy:                  besideLoopback(proxy),
		DialContext:            conns.Dial,
		TLSClientConfig:        tlsconfig.Client(roots),
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxAnswerHeader,
		Protocols:              protocols,
	}
}

// call sends one request, with a JSON body unless it is nil, and returns the answer as send does.
func (i *issuer) call(ctx context.Context, method, target string, body []byte, timeout time.Duration) (int, []byte, error) {
	header := http.Header{"Accept": {"*/*"}, "Originator": {originator}, "User-Agent": {i.userAgent}}
	if body != nil {
		header.Set("Content-Type", "application/json")
	}
	return i.send(ctx, method, target, header, body, timeout)
}

// send sends one request, and returns the answer whatever its status. Errors wrap
// [ErrTemporary] unless another try cannot help; they name neither path nor query.
func (i *issuer) send(ctx context.Context, method, target string, header http.Header, body []byte, timeout time.Duration) (int, []byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no full answer within %v", timeout))
	defer cancel()
	defer i.transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return 0, nil, errors.New("the address of the service is not a URL") // the cause quotes it
	}
	req.Header = header
	resp, err := i.transport.RoundTrip(req)
	if err != nil {
		return 0, nil, temporary(ctx, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return 0, nil, temporary(ctx, err)
	case len(answer) > maxAnswer:
		return 0, nil, fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
	}
	return resp.StatusCode, answer, nil
}

// temporary marks an error of the network as [ErrTemporary], unless the server
// could not prove its identity.
func temporary(ctx context.Context, err error) error {
	err, passing := Lost(ctx, err)
	if !passing {
		return err
	}
	return fmt.Errorf("%w: %w", ErrTemporary, err)
}

// Lost takes err, an error of net/http for a request that got no full answer, and
// returns an error that quotes nothing of the request: the cause of ctx if ctx has
// ended. passing reports whether another try may succeed. It is false only if the
// server could not prove its identity.
func Lost(ctx context.Context, err error) (cause error, passing bool) {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return err, false
	}
	return unquoted(err), true
}

var errMalformedAnswer = errors.New("answer is malformed")

// unquoted returns err, an error of net/http, or errMalformedAnswer if err may
// quote the answer: the answer may in turn quote the request with its credentials.
func unquoted(err error) error {
	if _, ok := errors.AsType[net.Error](err); ok || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	text := err.Error()
	_, protocol := errors.AsType[textproto.ProtocolError](err)
	if protocol || strings.Contains(text, "transport connection broken") || strings.Contains(text, `"`) {
		return errMalformedAnswer
	}
	return err
}
