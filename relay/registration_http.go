package relay

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/internal/tlsconfig"
	"github.com/execagent/execagent/registry/wire"
	"github.com/execagent/execagent/relay/socket"
)

// Bounds of one call to a registry (remote.md 3).
const (
	registryTimeout   = 10 * time.Second // headers and body of one attempt
	maxRegistryAnswer = 1 << 20          // bytes of a body
	maxErrorText      = 4096             // characters shown of an answer that is not 2xx (remote.md 3.4)
	// Idle connections are closed before most servers would close them. Four are
	// kept: up to 32 validate calls may run at once, but seldom do.
	registryIdleTimeout = 50 * time.Second
	registryIdleConns   = 4
)

func newRegistryTransport(roots *x509.CertPool, proxy func(*http.Request) (*url.URL, error)) *http.Transport {
	t := auth.NewTransport(roots, proxy)
	t.ProxyConnectHeader = http.Header{"User-Agent": {""}}
	t.MaxIdleConns, t.MaxIdleConnsPerHost = registryIdleConns, registryIdleConns
	t.IdleConnTimeout = registryIdleTimeout
	return t
}

var errPlainRendezvous = errors.New("rendezvous is neither wss nor on a loopback address: its URL would travel in clear text")

// dial opens a websocket to rawURL, which the registry has named. It trusts the
// roots that the registry itself is checked against. As for the registry, clear text
// goes to loopback addresses only, since the URL is a credential.
func (r *Registry) dial(ctx context.Context, rawURL string, header http.Header, cfg socket.Config) (*socket.Socket, error) {
	u, err := url.Parse(rawURL)
	if err == nil && u.Scheme == "ws" && !auth.IsLoopback(u.Hostname()) {
		return nil, errPlainRendezvous
	}
	if cfg.TLS == nil {
		cfg.TLS = tlsconfig.Client(r.transport.TLSClientConfig.RootCAs)
	}
	s, err := socket.Dial(ctx, rawURL, header, cfg) // which also reports a malformed URL
	_, network := errors.AsType[net.Error](err)
	for _, broken := range []error{io.EOF, io.ErrUnexpectedEOF, socket.ErrMalformedAnswer} {
		network = network || errors.Is(err, broken)
	}
	if network {
		err = &networkError{err}
	}
	return s, err
}

var errRegistryTimeout = fmt.Errorf("no full answer within %v", registryTimeout)

func withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, registryTimeout, errRegistryTimeout)
}

// call sends request and reads the answer into response, twice if the first answer
// is 401 and the token source has a fresh token. Without a request it sends a GET.
// It notes whether the registry takes the credential.
func (r *Registry) call(ctx context.Context, path string, request, response any, extra http.Header) error {
	err := r.callWithFresh(ctx, path, request, response, extra)
	refused, answered := errors.AsType[*RegistryError](err)
	switch {
	case answered && (refused.Status == http.StatusUnauthorized || refused.Status == http.StatusForbidden):
		r.refusal.Store(int32(refused.Status))
	case err == nil:
		r.refusal.Store(0)
	}
	return err
}

// refused is the status, 401 or 403, by which the registry has refused the credential, and 0
// once it has taken it since. A call that failed in another way says nothing about that.
func (r *Registry) refused() int { return int(r.refusal.Load()) }

func (r *Registry) callWithFresh(ctx context.Context, path string, request, response any, extra http.Header) error {
	var body []byte
	if request != nil {
		var err error
		if body, err = json.Marshal(request); err != nil {
			return err
		}
	}
	for repeated := false; ; repeated = true {
		err := r.attempt(ctx, path, body, response, extra)
		refused, ok := errors.AsType[*RegistryError](err)
		if !ok || refused.Status != http.StatusUnauthorized || repeated {
			return err
		}
		fresh, cause := r.tokens.Unauthorized(ctx)
		switch {
		case cause != nil:
			return fmt.Errorf("%w; %w", refused, cause)
		case !fresh:
			return refused
		}
	}
}

// attempt sends one request: exactly the headers of remote.md 3, no redirect followed.
func (r *Registry) attempt(ctx context.Context, path string, body []byte, response any, extra http.Header) error {
	header := http.Header{
		"Accept":     {"*/*"},
		"User-Agent": {""}, // net/http then sends none
	}
	method := http.MethodGet
	if body != nil {
		method = http.MethodPost
		header.Set("Content-Type", "application/json")
	}
	maps.Copy(header, extra)
	if err := r.tokens.Authorize(ctx, header); err != nil {
		return fmt.Errorf("signing the request: %w", err)
	}
	ctx, cancel := withTimeout(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, r.base+path, bytes.NewReader(body))
	if err != nil {
		return errors.New("registry URL is not valid") // the cause quotes it
	}
	req.Header = header
	resp, err := r.transport.RoundTrip(req)
	if err != nil {
		return lost(ctx, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxRegistryAnswer+1))
	switch {
	case err != nil:
		return lost(ctx, err)
	case resp.StatusCode/100 != 2:
		_, secret, _ := strings.Cut(header.Get("Authorization"), " ")
		return newRegistryError(resp.StatusCode, answer, secret)
	case len(answer) > maxRegistryAnswer:
		return fmt.Errorf("registry's answer is longer than %d bytes", maxRegistryAnswer)
	}
	if json.Unmarshal(answer, response) != nil {
		return errors.New("registry's answer is not the JSON object that was expected") // the cause may quote it
	}
	return nil
}

// lost returns the error of a call that got no full answer: a [networkError],
// unless the registry could not prove who it is.
func lost(ctx context.Context, err error) error {
	err, passing := auth.Lost(ctx, err)
	err = fmt.Errorf("calling the registry: %w", err)
	if passing {
		return &networkError{err}
	}
	return err
}

// RegistryError is an answer of a registry that is not 2xx.
type RegistryError struct {
	Status int
	// Code and Message are what the registry says, printable and at most 4096
	// characters each; often empty, and always so for validate, where the text
	// could repeat what was asked.
	Code, Message string
}

func (e *RegistryError) Error() string {
	text := fmt.Sprintf("registry answered %d", e.Status)
	if e.Code != "" {
		text += " " + e.Code
	}
	if e.Message != "" {
		text += ": " + e.Message
	}
	return text
}

// newRegistryError makes an error of an answer. A registry may repeat what it was
// sent, so secret is taken out of the text.
func newRegistryError(status int, body []byte, secret string) *RegistryError {
	e := &RegistryError{Status: status}
	var known wire.Error
	if json.Unmarshal(body, &known) == nil && (known.Error.Code != "" || known.Error.Message != "") {
		e.Code, e.Message = known.Error.Code, known.Error.Message
	} else {
		e.Message = string(body)
	}
	e.Code, e.Message = printable(e.Code, secret), printable(e.Message, secret)
	return e
}

// printable makes text fit for a line of a log, without secret.
func printable(text, secret string) string {
	if secret != "" {
		text = strings.ReplaceAll(text, secret, "[redacted]")
	}
	var b strings.Builder
	n := 0
	for _, c := range strings.TrimSpace(text) {
		if n++; n > maxErrorText {
			break
		}
		switch {
		case unicode.IsSpace(c):
			c = ' '
		case !unicode.IsPrint(c):
			c = unicode.ReplacementChar
		}
		b.WriteRune(c)
	}
	return b.String()
}
