package client

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/transport"
)

// Option is an option of a connection to a URL.
type Option func(*dialOptions)

type dialOptions struct {
	config Config
	dial   transport.DialConfig
}

// Token shows the server a bearer token.
func Token(token string) Option { return Header("Authorization", "Bearer "+token) }

// Header adds a header to the request that opens the connection. Headers may hold
// secrets, so they need a wss URL or a loopback host.
func Header(name, value string) Option {
	return func(o *dialOptions) {
		if o.dial.Header == nil {
			o.dial.Header = http.Header{}
		}
		o.dial.Header.Add(name, value)
	}
}

// TLS configures how a wss server is verified, and the client's certificate. Without
// it, the system's roots count.
func TLS(config *tls.Config) Option { return func(o *dialOptions) { o.dial.TLS = config } }

// Session resumes a session that another client left, see [Client.SessionID].
func Session(id string) Option {
	return func(o *dialOptions) { o.config.ResumeSessionID = id }
}

// Settings copies the name and the timeouts of a Config.
func Settings(cfg Config) Option {
	return func(o *dialOptions) {
		session, name := o.config.ResumeSessionID, o.config.SessionName
		o.config = cfg
		if session != "" {
			o.config.ResumeSessionID = session
		}
		if name != "" {
			o.config.SessionName = name
		}
	}
}

// DialURL connects to a server that listens at a ws or wss URL, or at unix:///PATH: it is
// Connect(ctx, URL(url, options...)).
func DialURL(ctx context.Context, url string, options ...Option) (*Client, error) {
	return Connect(ctx, URL(url, options...))
}

// URL returns the Config for a server that listens at a ws or wss URL, or at a UNIX socket,
// unix:///PATH. Config.Dial returns an error for an invalid URL. It also refuses to send headers
// over a plain connection to another machine.
func URL(url string, options ...Option) Config {
	var o dialOptions
	for _, option := range options {
		option(&o)
	}
	cfg := o.config
	cfg.Final = finalURL
	cfg.Dial = func(ctx context.Context) (rpc.Conn, error) {
		if err := checkURL(url, o.dial.Header); err != nil {
			return nil, err
		}
		conn, err := transport.Dial(ctx, url, o.dial)
		if err != nil {
			return nil, err // not conn: a nil *WebSocket makes an rpc.Conn that is not nil
		}
		return conn, nil
	}
	return cfg
}

const (
	errExposed = transport.URLError("exec-server WebSocket headers require wss:// or a loopback destination")
	errNoURL   = transport.URLError("exec-server url must use ws://, wss:// or unix://")
)

// checkURL refuses an invalid URL, and headers in plain text to another machine.
func checkURL(raw string, header http.Header) error {
	if strings.HasPrefix(raw, "unix://") {
		return nil // transport.Dial checks it
	}
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || (u.Scheme != "ws" && u.Scheme != "wss") {
		return errNoURL // the cause could quote a secret
	}
	if u.Scheme == "ws" && len(header) > 0 && !loopback(u.Hostname()) {
		return errExposed
	}
	return nil
}

func loopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// finalURL reports whether an error of dialling a URL is permanent: a refusal because
// of the URL or the token, or a name that does not exist.
func finalURL(err error) bool {
	if _, ok := errors.AsType[transport.URLError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*net.AddrError](err); ok {
		return true // no port, or an unknown one
	}
	if status, ok := errors.AsType[*transport.StatusError](err); ok {
		return status.Status == http.StatusUnauthorized || status.Status == http.StatusForbidden
	}
	unknown, ok := errors.AsType[*net.DNSError](err)
	if ok && unknown.IsNotFound && !unknown.IsTemporary {
		return true
	}
	_, unverified := errors.AsType[*tls.CertificateVerificationError](err)
	_, unwanted := errors.AsType[*transport.HandshakeError](err)
	return unverified || unwanted
}
