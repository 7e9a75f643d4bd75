// Package direct is remote mode without a relay: an executor registers and dials a websocket, a
// harness asks and dials another, and what they write is JSON-RPC as it is (remote.md 10). TLS
// protects each of the two legs. The operator of the server between them can read and change
// everything. So this is for networks where that is acceptable, and both ends must ask for it: an
// executor with [Link], a harness with [Dialer]. Neither end falls back from the encrypted
// transport of package relay to this one, nor the other way.
package direct

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/internal/relay/api"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/internal/tlsconfig"
	"github.com/execagent/execagent/relay"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/transport"
)

// maxID bounds the id of a registration, in bytes.
const maxID = 512

// endpoint is the place at which to open a websocket. Its URL is a credential.
type endpoint struct {
	url            *url.URL
	registrationID string
	websockets     int // that may be open at once
}

// ask sends a request of the direct transport and checks the answer.
func ask(ctx context.Context, r *relay.Registry, path string, request wire.DirectRequest, extra http.Header) (*endpoint, error) {
	request.Transport = wire.TransportDirect
	var answer wire.DirectResponse
	if err := r.Call(ctx, path, &request, &answer, extra); err != nil {
		return nil, err
	}
	switch {
	case answer.EnvironmentID != r.EnvironmentID():
		return nil, errors.New("environment_id of the registry's answer is of another environment")
	case answer.Transport != wire.TransportDirect:
		return nil, errors.New("transport of the registry's answer is not " + wire.TransportDirect)
	case strings.TrimSpace(answer.RegistrationID) == "":
		return nil, errors.New("registration_id of the registry's answer is blank")
	case len(answer.RegistrationID) > maxID:
		return nil, fmt.Errorf("registration_id of the registry's answer is longer than %d bytes", maxID)
	}
	u, err := checkURL(answer.URL)
	if err != nil {
		return nil, fmt.Errorf("url of the registry's answer %w", err)
	}
	return &endpoint{url: u, registrationID: answer.RegistrationID, websockets: answer.Websockets}, nil
}

// checkURL accepts wss, and ws to this machine, because elsewhere all messages, and the URL, would
// travel in clear text. Errors never quote it.
func checkURL(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	switch {
	case strings.TrimSpace(raw) == "":
		return nil, errors.New("is blank")
	case err != nil || u.Hostname() == "" || u.User != nil || u.Fragment != "":
		return nil, errors.New("is not of the form wss://HOST/PATH")
	case u.Scheme == "wss" || u.Scheme == "ws" && auth.IsLoopback(u.Hostname()):
		return u, nil
	}
	return nil, errors.New("is neither wss nor ws to a loopback address")
}

// open opens a websocket at a place. If the credential signs requests, this request is signed too.
// A server that refuses is a [*socket.RefusedError], which quotes nothing.
func open(ctx context.Context, r *relay.Registry, p *endpoint, budget *rpc.Budget, ping func(payload string)) (*transport.WebSocket, error) {
	request := (&http.Request{Method: http.MethodGet, URL: p.url, Header: http.Header{
		"User-Agent": {""}, // net/http then sends none
	}}).WithContext(ctx)
	if err := r.SignUpgrade(ctx, request); err != nil {
		return nil, err
	}
	secure := tlsconfig.Client(r.Transport().TLSClientConfig.RootCAs)
	conn, err := transport.Dial(ctx, p.url.String(), transport.DialConfig{
		Header: request.Header, TLS: secure, Budget: budget, Ping: ping,
		Connect: func(ctx context.Context, u *url.URL) (net.Conn, error) { return socket.Connect(ctx, u, secure) },
	})
	if err == nil {
		return conn, nil
	}
	if refused, ok := errors.AsType[*transport.StatusError](err); ok {
		return nil, &socket.RefusedError{Status: refused.Status}
	}
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	_, unwanted := errors.AsType[*transport.HandshakeError](err)
	if untrusted || unwanted {
		return nil, err
	}
	if cause := errors.Unwrap(err); cause != nil {
		err = cause // without the path, which may be a part of the credential
	}
	cause, _ := auth.Lost(ctx, err)
	return nil, &api.NetworkError{Cause: fmt.Errorf("dialing %s://%s: %w", p.url.Scheme, p.url.Host, cause)}
}
