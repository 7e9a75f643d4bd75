package registry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/internal/sigv4"
	"github.com/execagent/execagent/registry/internal/rooms"
)

// operationDirectRegister is the only operation that a signed request may ask for, besides the
// websocket that follows.
const operationDirectRegister = "direct_register"

// maxSignedBody bounds the body of a signed request, in bytes. The body is read before the
// signature can be checked, once a key with the id in the request is found.
const maxSignedBody = 1 << 10

// codeTransport says that executor and harness ask for different transports.
const codeTransport = "transport_mismatch"

// registerDirect answers an executor that asks for the direct transport (remote.md 10).
func (s *Server) registerDirect(ctx context.Context, c *call) (any, *apiError) {
	var request wire.DirectRequest
	base, failure := s.directFor(c, &request)
	if failure != nil {
		return nil, failure
	}
	reg, failure := s.enroll(c, func(allowed func() bool) (store.Registration, bool, error) {
		return s.store.RegisterDirect(ctx, c.environmentID, request.RegistrationID, c.principal.ID, allowed, s.hasExecutor)
	})
	if failure != nil {
		return nil, failure
	}
	return s.directAnswer(c, base, reg, ticket.Ticket{Role: ticket.Executor, Signed: isSigned(c.request), Expires: time.Now().Add(s.urlLife)}), nil
}

// connectDirect answers a harness that asks for the direct transport. A harness that asks for the
// other transport never gets this one, and the other way round.
func (s *Server) connectDirect(ctx context.Context, c *call) (any, *apiError) {
	var request wire.DirectRequest
	base, failure := s.directFor(c, &request)
	if failure != nil {
		return nil, failure
	}
	reg, failure := s.online(ctx, c, true)
	if failure != nil {
		return nil, failure
	}
	return s.directAnswer(c, base, reg, ticket.Ticket{Role: ticket.Harness, Expires: time.Now().Add(harnessTicketLife)}), nil
}

// directFor reads a request for the direct transport, and refuses it unless the operator allows the
// transport.
func (s *Server) directFor(c *call, request *wire.DirectRequest) (base *url.URL, failure *apiError) {
	if !s.allowsDirect(c.environmentID) {
		return nil, &apiError{status: http.StatusForbidden, code: codeForbidden, message: "this registry does not offer the direct transport to the environment (registry serve --direct)"}
	}
	if failure := c.decode(request); failure != nil {
		return nil, failure
	}
	if request.Transport != wire.TransportDirect {
		return nil, &apiError{status: http.StatusBadRequest, code: codeBadRequest, message: "transport is not " + wire.TransportDirect}
	}
	return s.baseFor(c)
}

// directAnswer completes a ticket.
func (s *Server) directAnswer(c *call, base *url.URL, reg store.Registration, t ticket.Ticket) wire.DirectResponse {
	t.EnvironmentID, t.RegistrationID, t.Principal, t.Direct = c.environmentID, reg.ID, c.principal.ID, true
	answer := wire.DirectResponse{
		EnvironmentID: c.environmentID, Transport: wire.TransportDirect, RegistrationID: reg.ID, URL: s.signer.URL(base, t),
	}
	if t.Role == ticket.Executor {
		answer.Websockets = rooms.Websockets
	}
	return answer
}

// otherTransport refuses a harness whose executor uses the other transport.
func otherTransport(direct bool) *apiError {
	message := "the executor of this environment does not offer the direct transport: ask for the encrypted one"
	if direct {
		message = "the executor of this environment is not encrypted from end to end: only a harness that asks for the direct transport reaches it"
	}
	return &apiError{status: http.StatusConflict, code: codeTransport, message: message}
}

// allowsDirect reports whether the operator lets an environment use the direct transport.
func (s *Server) allowsDirect(environmentID string) bool {
	return s.directPattern != "" && store.Matches(s.directPattern, environmentID)
}

// isSigned reports whether a request has a signature of AWS's form.
func isSigned(r *http.Request) bool {
	values := r.Header.Values("Authorization")
	return len(values) == 1 && sigv4.IsClaim(values[0])
}

// authenticateSigned finds the principal of a signed request. It reads the body and puts it back. A
// reader of the request could replay its signature for 15 minutes, but would only repeat the same
// registration, and the URL in the answer needs another signature.
func (s *Server) authenticateSigned(ctx context.Context, r *http.Request) (*store.Principal, error) {
	claim, err := sigv4.ParseClaim(r.Header.Get("Authorization"))
	if err != nil {
		return nil, store.ErrUnauthorized
	}
	at := s.knownAs(r)
	if len(at) == 0 {
		return nil, errNameless
	}
	p, hashes, err := s.store.Signing(ctx, claim.AccessKeyID)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxSignedBody+1))
	if err != nil || len(body) > maxSignedBody {
		return nil, store.ErrUnauthorized
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	for _, hash := range hashes {
		err = claim.Verify(ctx, r, body, s.signer.AccessSecret(claim.AccessKeyID, hash), time.Now(), at...)
		if err == nil {
			s.store.Signed(claim.AccessKeyID)
			return p, nil
		}
	}
	if errors.Is(err, sigv4.ErrNotSigned) {
		err = store.ErrUnauthorized
	}
	return nil, err
}

// signedBy reports whether a principal signed the request for a websocket.
func (s *Server) signedBy(r *http.Request, principalID string) (bool, error) {
	if !isSigned(r) {
		return false, nil
	}
	p, err := s.authenticateSigned(r.Context(), r)
	if errors.Is(err, store.ErrUnauthorized) || errors.Is(err, errNameless) {
		return false, nil
	}
	return err == nil && p.ID == principalID, err
}

// errNameless says why a registry accepts no signature for the host of a request: it does not know
// whether this host is the registry.
var errNameless = errors.New("this registry takes signed requests for the host of its --public-url alone, which is not set (registry serve --public-url)")

// knownAs returns the hosts and paths by which the client may have come: those of the operator, and
// those of the request if it names that host or this machine. Nothing else in a request or from a
// proxy counts, because a server with another name could pass on a request that an executor signed
// for it.
func (s *Server) knownAs(r *http.Request) []*url.URL {
	var at []*url.URL
	name := (&url.URL{Host: r.Host}).Hostname()
	if auth.IsLoopback(name) || s.publicURL != nil && name == s.publicURL.Hostname() {
		at = append(at, &url.URL{Host: r.Host, Path: r.URL.Path, RawPath: r.URL.RawPath})
	}
	if base := s.publicURL; base != nil && (base.Host != r.Host || base.Path != "") {
		outside := &url.URL{Host: base.Host, Path: strings.TrimRight(base.Path, "/") + r.URL.Path}
		if r.URL.RawPath != "" {
			outside.RawPath = strings.TrimRight(base.EscapedPath(), "/") + r.URL.RawPath
		}
		at = append(at, outside)
	}
	return at
}
