package socket

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// Connect opens the connection on which [Dial] would open a WebSocket to u, without the TLS of
// wss. config is for a proxy that is reached by TLS; nil verifies against the system's roots.
func Connect(ctx context.Context, u *url.URL, config *tls.Config) (net.Conn, error) {
	return connectTCP(ctx, u, Config{TLS: config})
}

// connectTCP opens TCP to the host of u, through a proxy if the environment
// names one.
func connectTCP(ctx context.Context, u *url.URL, cfg Config) (net.Conn, error) {
	target := net.JoinHostPort(u.Hostname(), portOf(u))
	if cfg.DialContext != nil {
		return cfg.DialContext(ctx, "tcp", target)
	}
	proxy, err := proxyFor(u)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	if proxy == nil {
		return d.DialContext(ctx, "tcp", target)
	}
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(proxy.Hostname(), portOf(proxy)))
	if err == nil && proxy.Scheme == "https" {
		conn, err = secure(ctx, conn, cfg.TLS, proxy.Hostname())
	}
	if err == nil {
		conn, err = throughProxy(ctx, conn, proxy, target)
	}
	if err != nil {
		return nil, fmt.Errorf("connecting through proxy %s: %w", proxy.Host, err)
	}
	return conn, nil
}

// portOf returns the port of u, or the default port of its scheme.
func portOf(u *url.URL) string {
	if port := u.Port(); port != "" {
		return port
	}
	switch u.Scheme {
	case "wss", "https":
		return "443"
	default:
		return "80"
	}
}

// proxyFor returns the proxy that the environment names for u, or nil if there is no proxy.
// A loopback host has no proxy.
func proxyFor(u *url.URL) (*url.URL, error) {
	// net/http recognizes "localhost" as a loopback host only in lower case.
	asked := &url.URL{Scheme: strings.Replace(u.Scheme, "ws", "http", 1), Host: strings.ToLower(u.Host)}
	proxy, err := http.ProxyFromEnvironment(&http.Request{URL: asked})
	if err != nil {
		return nil, errors.New("proxy in the environment is malformed") // the cause would quote its password
	}
	if proxy != nil && proxy.Scheme != "http" && proxy.Scheme != "https" {
		return nil, fmt.Errorf("proxy in the environment is of the unsupported kind %s", proxy.Scheme)
	}
	return proxy, nil
}

// throughProxy takes over conn, a connection to proxy, and has the proxy connect it
// to target.
func throughProxy(ctx context.Context, conn net.Conn, proxy *url.URL, target string) (net.Conn, error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	err := askProxy(conn, proxy, target)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// askProxy sends CONNECT (RFC 9110, 9.3.6) and reads the answer.
func askProxy(conn net.Conn, proxy *url.URL, target string) error {
	var b strings.Builder
	b.WriteString("CONNECT " + target + " HTTP/1.1\r\nHost: " + target + "\r\n")
	if proxy.User != nil {
		password, _ := proxy.User.Password()
		credentials := base64.StdEncoding.EncodeToString([]byte(proxy.User.Username() + ":" + password))
		b.WriteString("Proxy-Authorization: Basic " + credentials + "\r\n")
	}
	b.WriteString("\r\n")
	if _, err := io.WriteString(conn, b.String()); err != nil {
		return err
	}
	r := bufio.NewReaderSize(io.LimitReader(conn, maxUpgrade), 1<<10)
	response, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return unquoted(err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("answered with status %d", response.StatusCode)
	}
	if r.Buffered() > 0 {
		return errors.New("sent more than an answer")
	}
	return nil
}
