package conns

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestProxy: a proxy connects, or the error names it with its answer. No error has the password.
func TestProxy(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ scheme, answer, want string }{
		{"http", "HTTP/1.1 200 OK\r\n\r\n", ""},
		{"http", "HTTP/1.1 407 Who\r\nContent-Length: 3\r\n\r\nyou", "the proxy answered with status 407 Who"},
		{"http", "HTTP/1.1 200 OK\r\n\r\nmore", "more than an answer"},
		{"http", "HTTP/1.1 200 OK\r\n", "EOF"},
		{"http", "secret secret\r\n", "malformed"},
		{"socks5h", "\x05\x02\x01\x00\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x01", ""},
		{"socks5", "\x05\x02\x01\x00\x05\x05\x00\x01\x7f\x00\x00\x01\x00\x01", "connection refused"},
		{"socks5", "\x05\x02\x01\x01", "authentication failed"},
		{"ftp", "", "a proxy of the kind ftp:// is not supported: use http://, https:// or socks5h://"},
	} {
		l := rig.Listen(t, "tcp", "127.0.0.1:0", func(conn net.Conn) {
			if tt.scheme == "http" {
				r := rig.Value(http.ReadRequest(bufio.NewReader(conn)))
				rig.Is(t, r.Method+" "+r.Host+" "+r.Header.Get("Proxy-Authorization"), "CONNECT relay.test:443 Basic bWU6c2VjcmV0", "the request")
			}
			_, _ = io.WriteString(conn, tt.answer) // the client may have hung up
			if tt.scheme == "http" {
				return
			}
			_, _ = io.Copy(io.Discard, conn)
		})
		via := &url.URL{Scheme: tt.scheme, Host: l.String(), User: url.UserPassword("me", "secret")}
		conn, err := connectVia(t.Context(), via, "relay.test:443", nil)
		rig.Says(t, err, tt.want, "%s %q", tt.scheme, tt.answer)
		if err != nil {
			rig.Is(t, strings.Contains(err.Error(), "secret"), false, "%v has the password", err)
			continue
		}
		rig.Must(t, conn.Close())
	}
}

// TestLoopback: localhost is this host in both protocols, and no name server is asked.
func TestLoopback(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		if probe, err := net.Listen("tcp", address); err != nil {
			t.Logf("%s: %v", address, err)
			continue
		} else {
			rig.Must(t, probe.Close())
		}
		_, port, _ := net.SplitHostPort(rig.Listen(t, "tcp", address, rig.Echo).String())
		for _, name := range []string{"localhost", "LocalHost.", "no-such-name.localhost"} {
			conn, err := Dial(t.Context(), "tcp", net.JoinHostPort(name, port))
			rig.Must(t, err)
			rig.Must(t, conn.Close())
		}
	}
	rig.Is(t, len(Loopback("localhost.example"))+len(Loopback("notlocalhost")), 0, "addresses of other names")
	_, err := Dial(context.Background(), "tcp", "localhost:1")
	rig.Says(t, err, "127.0.0.1:1: connect: connection refused", "nobody listens")
}
