package relay

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/internal/relay/api"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/internal/tlsconfig"
)

var errPlainRendezvous = errors.New("rendezvous is neither wss nor on a loopback address: its URL would travel in clear text")

// dial opens a websocket to rawURL, which the registry named. It trusts the same
// roots as for the registry itself. As for the registry, clear text goes to loopback
// addresses only, because the URL is a credential.
func (r *Registry) dial(ctx context.Context, rawURL string, header http.Header, cfg socket.Config) (*socket.Socket, error) {
	u, err := url.Parse(rawURL)
	if err == nil && u.Scheme == "ws" && !auth.IsLoopback(u.Hostname()) {
		return nil, errPlainRendezvous
	}
	if cfg.TLS == nil {
		cfg.TLS = tlsconfig.Client(r.Transport().TLSClientConfig.RootCAs)
	}
	s, err := socket.Dial(ctx, rawURL, header, cfg) // which also reports a malformed URL
	_, network := errors.AsType[net.Error](err)
	for _, broken := range []error{io.EOF, io.ErrUnexpectedEOF, socket.ErrMalformedAnswer} {
		network = network || errors.Is(err, broken)
	}
	if network {
		err = &api.NetworkError{Cause: err}
	}
	return s, err
}
