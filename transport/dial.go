package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/execagent/execagent/internal/conns"
	"github.com/execagent/execagent/internal/tlsconfig"
	"github.com/execagent/execagent/internal/unixsocket"
	"github.com/execagent/execagent/rpc"
)

// handshakeTimeout bounds the opening of a connection, at both ends
// (client.md 1.1).
const handshakeTimeout = 10 * time.Second

// clientWriteBuffer is the size in bytes above which a client sends a message in
// fragments, because it must copy every byte to mask it, and the reference accepts no
// frame above 16 MiB (rpc.md 1.3). Each fragment costs us one system call and the
// server three. A connection has a buffer only while it writes.
const clientWriteBuffer = 512 << 10

var clientWriteBuffers sync.Pool

// DialConfig configures Dial. The zero value is usable.
type DialConfig struct {
	Header http.Header // for the upgrade request, such as Authorization
	TLS    *tls.Config // for wss; nil verifies against the system's roots

	HandshakeTimeout time.Duration // for TCP, TLS and upgrade together; 0 is 10 s
	PingInterval     time.Duration // 0 is 30 s, see [WebSocket]
	PeerTimeout      time.Duration // 0 is 90 s, see [WebSocket]

	// Budget bounds the memory of messages, for a program that serves requests of the
	// dialled server; nil: no bound.
	Budget *rpc.Budget
	// Ping is called for each ping of the server, in the goroutine that reads; it may be nil.
	Ping func(payload string)
	// Connect opens the connection for a ws or wss URL, for example through a proxy. It must return
	// a *net.TCPConn. Nil connects through the proxy that HTTPS_PROXY, HTTP_PROXY (for ws) or
	// ALL_PROXY names, unless NO_PROXY has the host or the host is a loopback address.
	Connect func(ctx context.Context, u *url.URL) (net.Conn, error)
}

// URLError describes an unusable URL, without quoting it.
type URLError string

func (e URLError) Error() string { return string(e) }

// StatusError is the answer of a server that did not upgrade.
type StatusError struct {
	Status int    // HTTP status
	Body   string // the first 256 bytes of the answer
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("upgrade answered with status %d, %q", e.Status, strings.TrimSpace(e.Body))
}

// HandshakeError says that the server refused the client during TLS, usually because of its
// certificate or the lack of one.
type HandshakeError struct{ Err error }

func (e *HandshakeError) Error() string { return e.Err.Error() }
func (e *HandshakeError) Unwrap() error { return e.Err }

// Dial opens a WebSocket to a ws or wss URL, or to a UNIX socket at unix:///PATH. The
// server of a UNIX socket must run as this user, as root, or as a user to whom one of these
// gave the socket's folder. The context and HandshakeTimeout bound only the opening. The
// error names the URL without its query and credentials; it is a [*StatusError] if the
// server refused, and a [URLError] for a wrong URL. The caller closes the connection.
func Dial(ctx context.Context, rawURL string, config DialConfig) (*WebSocket, error) {
	if unixsocket.Is(rawURL) {
		conn, err := dialUnix(ctx, rawURL, config)
		if err != nil {
			return nil, fmt.Errorf("dialing %s: %w", rawURL, err)
		}
		return conn, nil
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, URLError("websocket URL is malformed") // the cause would quote it
	}
	conn, err := dial(ctx, u, config)
	if err != nil {
		shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
		return nil, fmt.Errorf("dialing %s: %w", shown.String(), err)
	}
	return conn, nil
}

func dial(ctx context.Context, u *url.URL, config DialConfig) (*WebSocket, error) {
	if (u.Scheme != "ws" && u.Scheme != "wss") || u.Host == "" {
		return nil, URLError("want a URL of the form ws://HOST, wss://HOST or unix:///PATH")
	}
	if u.User != nil {
		return nil, URLError("URL holds credentials, which belong in a header")
	}
	return open(ctx, u.String(), config, func(ctx context.Context, _, _ string) (stream, error) {
		connect := config.Connect
		if connect == nil {
			connect = func(ctx context.Context, u *url.URL) (net.Conn, error) {
				return conns.Connect(ctx, u, func(_ context.Context, conn net.Conn, _ string) (net.Conn, error) {
					return conn, errSecureProxy
				})
			}
		}
		conn, err := connect(ctx, u)
		if err != nil {
			return nil, err
		}
		tcp, ok := conn.(*net.TCPConn) // gorilla dials "tcp" only
		if !ok {
			conn.Close()
			return nil, errSecureProxy
		}
		return tcp, nil
	})
}

var errSecureProxy = errors.New("the proxy is reached by TLS, through which no WebSocket is opened")

func dialUnix(ctx context.Context, rawURL string, config DialConfig) (*WebSocket, error) {
	path, err := unixsocket.Path(rawURL)
	if err != nil {
		return nil, URLError(err.Error())
	}
	return open(ctx, "ws://localhost/", config, func(ctx context.Context, _, _ string) (stream, error) {
		conn, err := unixsocket.Dial(ctx, path)
		if foreign, ok := errors.AsType[*unixsocket.ServerError](err); ok {
			err = URLError(foreign.Error())
		}
		if err != nil {
			return nil, err
		}
		return conn, nil
	})
}

// clientTLS completes a configuration with the host of an address, and with HTTP/1.1,
// which WebSockets need.
func clientTLS(config *tls.Config, address string) *tls.Config {
	config = config.Clone()
	if host, _, err := net.SplitHostPort(address); err == nil && config.ServerName == "" {
		config.ServerName = host
	}
	config.NextProtos = []string{"http/1.1"}
	return config
}

// open opens a WebSocket over the connection that connect makes.
func open(ctx context.Context, url string, config DialConfig, connect func(ctx context.Context, network, address string) (stream, error)) (*WebSocket, error) {
	if config.TLS == nil {
		config.TLS = tlsconfig.Client(nil)
	}
	if config.HandshakeTimeout <= 0 {
		config.HandshakeTimeout = handshakeTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, config.HandshakeTimeout)
	defer cancel()

	var under *wire
	stop := func() bool { return true }
	dialer := websocket.Dialer{
		WriteBufferSize: clientWriteBuffer,
		WriteBufferPool: &clientWriteBuffers,
		NetDialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := connect(ctx, network, address)
			if err != nil {
				return nil, err
			}
			w, over := newWire(conn)
			under = w
			// gorilla only uses the deadline of ctx, so a cancelled ctx closes conn.
			stop = context.AfterFunc(ctx, func() { conn.Close() })
			return over, nil
		},
		NetDialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := connect(ctx, network, address)
			if err != nil {
				return nil, err
			}
			w, over := newSecureWire(conn, clientTLS(config.TLS, address), tls.Client)
			under = w
			stop = context.AfterFunc(ctx, func() { conn.Close() })
			if err := w.secure.HandshakeContext(ctx); err != nil {
				_ = conn.Close() // nothing was sent on it
				return nil, err
			}
			return over, nil
		},
	}
	ws, response, err := dialer.DialContext(ctx, url, config.Header)
	if !stop() {
		if ws != nil {
			ws.Close()
		}
		err = context.Cause(ctx)
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return nil, fmt.Errorf("timed out: %w", err)
	}
	// With TLS 1.3 the alert comes after the handshake, in place of the answer.
	if alert, ok := errors.AsType[*net.OpError](err); ok && alert.Op == "remote error" {
		return nil, &HandshakeError{err}
	}
	if errors.Is(err, websocket.ErrBadHandshake) && response.StatusCode != http.StatusSwitchingProtocols {
		body, _ := io.ReadAll(io.LimitReader(response.Body, 256)) // after an error, the part that has come
		return nil, &StatusError{Status: response.StatusCode, Body: string(body)}
	}
	if err != nil {
		return nil, err
	}
	c := newWebSocket(ws, under, config.PingInterval, config.PeerTimeout, config.Budget)
	if config.Ping != nil {
		ws.SetPingHandler(func(payload string) error {
			config.Ping(payload)
			return c.answerPing(payload)
		})
	}
	return c, nil
}
