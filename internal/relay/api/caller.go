// Package api calls a registry over HTTP, for executors and harnesses of every transport: each
// call is signed, bounded and answered with JSON, and its errors hold no credential, no
// authorization and no URL of a rendezvous (remote.md 3).
package api

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/internal/relay/wire"
)

// The pauses between repeated calls (remote.md 3.4). The longest is shorter than
// the reference's, because a person waits for a harness to connect, and streams
// wait for an executor that must register again.
const (
	firstDelay = 500 * time.Millisecond
	mostDelay  = 5 * time.Second
)

// Config has the registry to call and the credential. BaseURL and Tokens are required.
type Config struct {
	// BaseURL is https, or http to loopback, without userinfo, query and fragment;
	// blanks around it and slashes at its end are ignored.
	BaseURL string
	Tokens  auth.TokenSource
	// RootCAs, if set, replaces the trusted roots of the system.
	RootCAs *x509.CertPool
	// Proxy returns the proxy for a request. If it is nil, and for loopback
	// hosts, no proxy is used.
	Proxy func(*http.Request) (*url.URL, error)
}

// Caller calls one registry, at paths with one beginning. It keeps connections open; Close
// drops them. All methods may run at once.
type Caller struct {
	base      string // up to the name of the call
	tokens    auth.TokenSource
	transport *http.Transport

	refusal atomic.Int32 // the status by which the credential was refused; 0 if it was not
}

// New checks cfg and makes a caller for the paths that begin with one. It sends nothing yet.
func New(cfg Config, path string) (*Caller, error) {
	if cfg.Tokens == nil {
		return nil, auth.ErrNoCredential
	}
	base, err := auth.CheckBase(cfg.BaseURL, cfg.Tokens)
	if err != nil {
		return nil, fmt.Errorf("registry URL %w", err)
	}
	return &Caller{base: base.String() + path, tokens: cfg.Tokens, transport: newTransport(cfg.RootCAs, cfg.Proxy)}, nil
}

// Close drops the idle connections; calls under way go on.
func (c *Caller) Close() { c.transport.CloseIdleConnections() }

// Transport returns the transport of the calls.
func (c *Caller) Transport() *http.Transport { return c.transport }

// SignUpgrade signs the request for a websocket, if the credential signs whole requests;
// otherwise the URL is the only credential.
func (c *Caller) SignUpgrade(ctx context.Context, r *http.Request) error {
	signer, ok := c.tokens.(auth.RequestSigner)
	if !ok {
		return nil
	}
	if err := signer.SignRequest(ctx, r, nil); err != nil {
		return fmt.Errorf("signing the request: %w", err)
	}
	return nil
}

// NetworkError is a failure of the network: a call to the registry without a full
// answer, a websocket that could not be made or has ended.
type NetworkError struct{ Cause error }

func (e *NetworkError) Error() string { return e.Cause.Error() }
func (e *NetworkError) Unwrap() error { return e.Cause }

// RegisterAgain reports whether a failed registration may be repeated: while the registry answers
// that another registration is in the way or that it cannot check credentials now, and while the
// credential is temporarily unavailable. Every other failure is final, because the call may have
// succeeded although its answer was lost, and a repetition could replace a newer registration
// (remote.md 3.4).
func RegisterAgain(err error) bool {
	if refused, ok := errors.AsType[*Error](err); ok {
		switch refused.Status {
		case http.StatusServiceUnavailable:
			return refused.Code == wire.CodeConflict
		case http.StatusBadGateway:
			return refused.Code == wire.CodeAuthUnavailable
		}
	}
	return errors.Is(err, auth.ErrTemporary)
}

// ConnectAgain reports whether a failed question for an executor may be repeated: if the executor
// is offline, the registry is busy or fails, or the network fails. Any other refusal is final.
func ConnectAgain(err error) bool {
	if refused, ok := errors.AsType[*Error](err); ok {
		return refused.Status == http.StatusConflict && refused.Code == wire.CodeEnvironmentOffline || Busy(refused.Status)
	}
	_, network := errors.AsType[*NetworkError](err)
	return network || errors.Is(err, auth.ErrTemporary)
}

// Busy reports whether a server that answered with this status may answer the
// same request differently later.
func Busy(status int) bool {
	return status == http.StatusRequestTimeout || status == http.StatusTooManyRequests || status/100 == 5
}

// Repeat calls f until it succeeds, until again returns false for its error, or
// until ctx ends. In the last case the error also has f's last failure.
func Repeat(ctx context.Context, log *slog.Logger, what string, again func(error) bool, f func() error) error {
	for n := 0; ; n++ {
		err := f()
		if err == nil || ctx.Err() != nil || !again(err) {
			return err
		}
		delay := Delay(n)
		log.WarnContext(ctx, what, "delay", delay, "error", err)
		if Sleep(ctx, delay) != nil {
			return fmt.Errorf("%w, after: %w", context.Cause(ctx), err)
		}
	}
}

// Delay is the pause after attempt n, counted from 0: doubling, and up
// to half as much on top.
func Delay(n int) time.Duration {
	base := min(firstDelay<<min(n, 4), mostDelay*2/3)
	return base + rand.N(base/2+1)
}

// Sleep returns after d, or earlier with the error of ctx.
func Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
