package conns

import (
	"bufio"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"

	"golang.org/x/net/http/httpproxy"
	"golang.org/x/net/proxy"
)

const (
	// maxAnswer bounds the answer of a proxy, in bytes.
	maxAnswer = 64 << 10
	// maxStatus is how much of its status an error quotes, in bytes.
	maxStatus = 100
)

// RefusedError is the answer of a proxy that did not connect.
type RefusedError struct {
	Code   int
	Status string // code and text, as they came
}

func (e *RefusedError) Error() string {
	return "the proxy answered with status " + e.Status[:min(len(e.Status), maxStatus)]
}

// environment is read once, as by net/http.
var environment = sync.OnceValue(func() func(*url.URL) (*url.URL, error) {
	c := httpproxy.FromEnvironment()
	all := cmp.Or(os.Getenv("ALL_PROXY"), os.Getenv("all_proxy"))
	c.HTTPProxy, c.HTTPSProxy = cmp.Or(c.HTTPProxy, all), cmp.Or(c.HTTPSProxy, all)
	return c.ProxyFunc()
})

// Proxy returns the proxy that the environment names for a URL with http, https, ws or wss, or nil if
// there is none: HTTPS_PROXY, HTTP_PROXY, otherwise ALL_PROXY, unless NO_PROXY has the host. A loopback
// host has no proxy.
func Proxy(u *url.URL) (*url.URL, error) {
	host := strings.ToLower(u.Hostname())
	if Loopback(host) != nil {
		return nil, nil
	}
	found, err := environment()(&url.URL{Scheme: strings.Replace(u.Scheme, "ws", "http", 1), Host: strings.ToLower(u.Host)})
	if err != nil {
		return nil, errors.New("the proxy in HTTPS_PROXY, HTTP_PROXY or ALL_PROXY is not a URL: write http://HOST:PORT or socks5h://HOST:PORT") // the cause would quote its password
	}
	return found, nil
}

// ProxyOf is Proxy for an [http.Transport].
func ProxyOf(r *http.Request) (*url.URL, error) { return Proxy(r.URL) }

// Connect opens TCP to the host of u, through a proxy if the environment names one. secure opens TLS to
// a proxy that wants it.
func Connect(ctx context.Context, u *url.URL, secure func(ctx context.Context, conn net.Conn, host string) (net.Conn, error)) (net.Conn, error) {
	target := HostPort(u)
	via, err := Proxy(u)
	if err != nil {
		return nil, err
	}
	if via == nil {
		return Dial(ctx, "tcp", target)
	}
	conn, err := connectVia(ctx, via, target, secure)
	if err != nil {
		return nil, fmt.Errorf("connecting through proxy %s: %w", via.Host, err)
	}
	return conn, nil
}

func connectVia(ctx context.Context, via *url.URL, target string, secure func(ctx context.Context, conn net.Conn, host string) (net.Conn, error)) (net.Conn, error) {
	ask := askHTTP
	switch via.Scheme {
	case "http", "https":
	case "socks5", "socks5h":
		ask = askSOCKS
	default:
		return nil, fmt.Errorf("a proxy of the kind %s:// is not supported: use http://, https:// or socks5h://", via.Scheme)
	}
	conn, err := Dial(ctx, "tcp", HostPort(via))
	if err == nil && via.Scheme == "https" {
		conn, err = secure(ctx, conn, via.Hostname())
	}
	if err != nil {
		return nil, err
	}
	return through(ctx, conn, func() error { return ask(ctx, conn, via, target) })
}

// through takes over conn, a connection to a proxy, and has the proxy connect it.
func through(ctx context.Context, conn net.Conn, ask func() error) (net.Conn, error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	err := ask()
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// HostPort returns the host of u with its port, or with the default port of its scheme.
func HostPort(u *url.URL) string {
	port := map[string]string{"wss": "443", "https": "443", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port, "80"))
}

// askHTTP sends CONNECT (RFC 9110, 9.3.6) and reads the answer.
func askHTTP(_ context.Context, conn net.Conn, via *url.URL, target string) error {
	var b strings.Builder
	b.WriteString("CONNECT " + target + " HTTP/1.1\r\nHost: " + target + "\r\n")
	if via.User != nil {
		password, _ := via.User.Password()
		credentials := base64.StdEncoding.EncodeToString([]byte(via.User.Username() + ":" + password))
		b.WriteString("Proxy-Authorization: Basic " + credentials + "\r\n")
	}
	b.WriteString("\r\n")
	if _, err := io.WriteString(conn, b.String()); err != nil {
		return err
	}
	r := bufio.NewReaderSize(io.LimitReader(conn, maxAnswer), 1<<10)
	response, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	if _, failed := errors.AsType[net.Error](err); failed || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) {
		return err
	}
	if err != nil {
		return errors.New("the answer of the proxy is malformed") // the cause would quote it
	}
	if response.StatusCode != http.StatusOK {
		return &RefusedError{response.StatusCode, response.Status}
	}
	if r.Buffered() > 0 {
		return errors.New("the proxy sent more than an answer")
	}
	return nil
}

// askSOCKS asks a SOCKS5 proxy, which looks the name up.
func askSOCKS(ctx context.Context, conn net.Conn, via *url.URL, target string) error {
	var auth *proxy.Auth
	if via.User != nil {
		password, _ := via.User.Password()
		auth = &proxy.Auth{User: via.User.Username(), Password: password}
	}
	d, err := proxy.SOCKS5("tcp", HostPort(via), auth, nil)
	if err == nil {
		_, err = d.(interface {
			DialWithConn(ctx context.Context, conn net.Conn, network, address string) (net.Addr, error)
		}).DialWithConn(ctx, conn, "tcp", target)
	}
	return err
}
