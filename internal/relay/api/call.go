package api

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/internal/relay/wire"
)

// Bounds of one call to a registry (remote.md 3).
const (
	callTimeout  = 10 * time.Second // headers and body of one attempt
	maxAnswer    = 1 << 20          // bytes of a body
	maxErrorText = 4096             // characters shown of an answer that is not 2xx (remote.md 3.4)
	// Idle connections are closed before most servers would close them. Four are
	// kept: up to 32 validate calls may run at once, but seldom do.
	idleTimeout = 50 * time.Second
	idleConns   = 4
)

func newTransport(roots *x509.CertPool, proxy func(*http.Request) (*url.URL, error)) *http.Transport {
	t := auth.NewTransport(roots, proxy)
	t.ProxyConnectHeader = http.Header{"User-Agent": {""}}
	t.MaxIdleConns, t.MaxIdleConnsPerHost = idleConns, idleConns
	t.IdleConnTimeout = idleTimeout
	return t
}

// ErrExecutorChanged says that another executor has registered for the environment since the first
// connection. The earlier executor, with all that ran there, does not come back.
var ErrExecutorChanged = errors.New("another agent has registered for the environment: the one before was restarted or replaced, and what ran there is gone")

var errTimeout = fmt.Errorf("no full answer within %v", callTimeout)

// WithTimeout bounds one call, headers and body of its answer.
func WithTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, callTimeout, errTimeout)
}

// Call sends request and reads the answer into response, twice if the first answer
// is 401 and the token source has a fresh token. Without a request it sends a GET.
// It notes whether the registry accepts the credential.
func (c *Caller) Call(ctx context.Context, path string, request, response any, extra http.Header) error {
	err := c.callWithFresh(ctx, path, request, response, extra)
	refused, answered := errors.AsType[*Error](err)
	switch {
	case answered && (refused.Status == http.StatusUnauthorized || refused.Status == http.StatusForbidden):
		c.refusal.Store(int32(refused.Status))
	case err == nil:
		c.refusal.Store(0)
	}
	return err
}

// Refused returns the status, 401 or 403, with which the registry refused the credential, or 0 if
// it has accepted the credential since. Calls that fail in another way do not change it.
func (c *Caller) Refused() int { return int(c.refusal.Load()) }

func (c *Caller) callWithFresh(ctx context.Context, path string, request, response any, extra http.Header) error {
	var body []byte
	if request != nil {
		var err error
		if body, err = json.Marshal(request); err != nil {
			return err
		}
	}
	for repeated := false; ; repeated = true {
		err := c.attempt(ctx, path, body, response, extra)
		refused, ok := errors.AsType[*Error](err)
		if !ok || refused.Status != http.StatusUnauthorized || repeated {
			return err
		}
		fresh, cause := c.tokens.Unauthorized(ctx)
		switch {
		case cause != nil:
			return fmt.Errorf("%w; %w", refused, cause)
		case !fresh:
			return refused
		}
	}
}

// attempt sends one request: exactly the headers of remote.md 3, no redirect followed.
func (c *Caller) attempt(ctx context.Context, path string, body []byte, response any, extra http.Header) error {
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
	unsent, err := http.NewRequest(method, c.base+path, nil) // gets the context that bounds it below
	if err != nil {
		return errors.New("registry URL is not valid") // the cause quotes it
	}
	unsent.Header = header
	if signer, ok := c.tokens.(auth.RequestSigner); ok {
		err = signer.SignRequest(ctx, unsent, body)
	} else {
		err = c.tokens.Authorize(ctx, header)
	}
	if err != nil {
		return fmt.Errorf("signing the request: %w", err)
	}
	ctx, cancel := WithTimeout(ctx) // without the time for signing, which may call other services
	defer cancel()
	req := unsent.WithContext(ctx)
	req.ContentLength, req.Body = int64(len(body)), io.NopCloser(bytes.NewReader(body))
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		return lost(ctx, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return lost(ctx, err)
	case resp.StatusCode/100 != 2:
		_, secret, _ := strings.Cut(header.Get("Authorization"), " ")
		return newError(resp.StatusCode, answer, secret)
	case len(answer) > maxAnswer:
		return fmt.Errorf("registry's answer is longer than %d bytes", maxAnswer)
	}
	if json.Unmarshal(answer, response) != nil {
		return errors.New("registry's answer is not the JSON object that was expected") // the cause may quote it
	}
	return nil
}

// lost returns the error of a call that got no full answer: a [NetworkError],
// unless the registry could not prove its identity.
func lost(ctx context.Context, err error) error {
	err, passing := auth.Lost(ctx, err)
	err = fmt.Errorf("calling the registry: %w", err)
	if passing {
		return &NetworkError{err}
	}
	return err
}

// Error is an answer of a registry that is not 2xx.
type Error struct {
	Status int
	// Code and Message come from the registry, printable and at most 4096
	// characters each. They are often empty, and always for validate, because
	// the text could repeat the question.
	Code, Message string
}

func (e *Error) Error() string {
	text := fmt.Sprintf("registry answered %d", e.Status)
	if e.Code != "" {
		text += " " + e.Code
	}
	if e.Message != "" {
		text += ": " + e.Message
	}
	return text
}

// newError makes an error of an answer. A registry may repeat the request, so
// secret is removed from the text.
func newError(status int, body []byte, secret string) *Error {
	e := &Error{Status: status}
	var known wire.Error
	if json.Unmarshal(body, &known) == nil && (known.Error.Code != "" || known.Error.Message != "") {
		e.Code, e.Message = known.Error.Code, known.Error.Message
	} else {
		e.Message = string(body)
	}
	e.Code, e.Message = Printable(e.Code, secret), Printable(e.Message, secret)
	return e
}

// Printable makes text fit for a line of a log, without secret.
func Printable(text, secret string) string {
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
