package socket

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"

	"github.com/gorilla/websocket"

	"github.com/execagent/execagent/internal/tlsconfig"
)

// RefusedError is the error of Dial if the server answered, but did not upgrade.
type RefusedError struct {
	Status int // of the HTTP answer
	// Reason is the header x-codex-rendezvous-rejection-reason of the answer: printable
	// ASCII, at most 64 bytes, or empty.
	Reason string
}

func (e *RefusedError) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("upgrade answered with status %d", e.Status)
	}
	return fmt.Sprintf("upgrade answered with status %d, %s", e.Status, e.Reason)
}

// maxReason bounds a rejection reason, in bytes. The longest known reason has 39 bytes
// (remote.md 4).
const maxReason = 64

// reason returns the rejection reason of an answer, or "" for a reason that is not fit for
// a log.
func reason(h http.Header) string {
	text := h.Get("X-Codex-Rendezvous-Rejection-Reason")
	if len(text) > maxReason {
		return ""
	}
	for i := range len(text) {
		if text[i] <= ' ' || text[i] > '~' {
			return ""
		}
	}
	return text
}

// Dial opens a WebSocket to a ws or wss URL, through the proxy that the
// environment names for the URL. A loopback host is reached without a proxy. The request
// has the headers that RFC 6455 requires and those of header, and no others. ctx bounds
// the opening only. TCP, TLS and HTTP together may take 10 s.
//
// If the server answers with a status other than 101, the error is a [*RefusedError]. No
// error holds more of the URL than scheme and host, because the URL is a credential.
func Dial(ctx context.Context, rawURL string, header http.Header, cfg Config) (*Socket, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, errors.New("websocket URL is malformed") // err would quote the URL
	}
	if (u.Scheme != "ws" && u.Scheme != "wss") || u.Host == "" {
		return nil, errors.New("websocket URL is not of the form ws://HOST or wss://HOST")
	}
	if u.User != nil {
		return nil, errors.New("websocket URL holds credentials")
	}
	ctx, cancel := context.WithTimeout(ctx, upgradeTimeout)
	defer cancel()
	s, err := dial(ctx, u, header, cfg)
	if err != nil {
		return nil, fmt.Errorf("dialing %s://%s: %w", u.Scheme, u.Host, err)
	}
	return s, nil
}

func dial(ctx context.Context, u *url.URL, header http.Header, cfg Config) (*Socket, error) {
	conn, err := connect(ctx, u, cfg)
	if err != nil {
		return nil, timely(ctx, err)
	}
	w := newWire(conn)
	given := func(context.Context, string, string) (net.Conn, error) { return w, nil }
	dialer := websocket.Dialer{
		NetDialContext:    given,
		NetDialTLSContext: given, // the TLS handshake is done already
		ReadBufferSize:    readBuffer,
		WriteBufferPool:   &upgradeBuffers,
	}
	header = header.Clone()
	if header == nil {
		header = http.Header{}
	}
	if _, ok := header["User-Agent"]; !ok {
		header["User-Agent"] = []string{""} // otherwise net/http adds its own
	}
	// gorilla uses only the deadline of ctx, so a cancelled ctx closes conn here.
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	ws, response, err := dialer.DialContext(ctx, u.String(), header)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	switch {
	case err == nil:
		return newSocket(ws, w, true, cfg), nil
	case errors.Is(err, websocket.ErrBadHandshake) && response.StatusCode != http.StatusSwitchingProtocols:
		conn.Close()
		return nil, &RefusedError{Status: response.StatusCode, Reason: reason(response.Header)}
	default:
		conn.Close()
		return nil, timely(ctx, unquoted(err))
	}
}

// ErrMalformedAnswer replaces the error of net/http for an answer that is malformed or
// incomplete, because the text of that error may quote the answer.
var ErrMalformedAnswer = errors.New("answer is malformed")

// unquoted returns err, or [ErrMalformedAnswer] if err may quote the answer. The
// answer may quote the request, whose URL is a credential.
func unquoted(err error) error {
	if _, ok := errors.AsType[net.Error](err); ok {
		return err
	}
	for _, known := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, errLongUpgrade, websocket.ErrBadHandshake} {
		if errors.Is(err, known) {
			return err
		}
	}
	return ErrMalformedAnswer
}

// timely returns the cause of ctx's end, or err if ctx has not ended. The end of ctx closes
// the connection, and err then says only that the connection is closed.
func timely(ctx context.Context, err error) error {
	if ctx.Err() == nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return context.Cause(ctx)
	}
	return fmt.Errorf("timed out: %w", context.DeadlineExceeded)
}

// connect opens TCP, and TLS for wss, to the host of u.
func connect(ctx context.Context, u *url.URL, cfg Config) (net.Conn, error) {
	conn, err := connectTCP(ctx, u, cfg)
	if err != nil || u.Scheme == "ws" {
		return conn, err
	}
	return secure(ctx, conn, cfg.TLS, u.Hostname())
}

// secure takes conn over and does the TLS handshake of a client.
func secure(ctx context.Context, conn net.Conn, config *tls.Config, host string) (net.Conn, error) {
	if config == nil {
		config = tlsconfig.Client(nil)
	}
	config = config.Clone()
	config.NextProtos = nil // HTTP/1.1 alone can be upgraded this way
	config.ServerName = cmp.Or(config.ServerName, host)
	c := tls.Client(conn, config)
	if err := c.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, fmt.Errorf("tls handshake: %w", err)
	}
	return c, nil
}
