package socket

import (
	"context"
	"crypto/tls"
	"net"
	"net/url"

	"github.com/execagent/execagent/internal/conns"
)

// Connect opens the connection on which [Dial] would open a WebSocket to u, without the TLS of
// wss. config is for a proxy that is reached by TLS; nil verifies against the system's roots.
func Connect(ctx context.Context, u *url.URL, config *tls.Config) (net.Conn, error) {
	return connectTCP(ctx, u, Config{TLS: config})
}

// connectTCP opens TCP to the host of u, through a proxy if the environment
// names one.
func connectTCP(ctx context.Context, u *url.URL, cfg Config) (net.Conn, error) {
	if cfg.DialContext != nil {
		return cfg.DialContext(ctx, "tcp", conns.HostPort(u))
	}
	return conns.Connect(ctx, u, func(ctx context.Context, conn net.Conn, host string) (net.Conn, error) {
		return secure(ctx, conn, cfg.TLS, host)
	})
}
