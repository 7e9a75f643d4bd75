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

// operationDirectRegister is the only operation that a signed request may ask for, beside the
// websocket that follows.
const operationDirectRegister = "direct_register"

// maxSignedBody bounds the body of a signed request, in bytes: it is read before the signature can
// be checked, once there is a key with the id that the request names.
const maxSignedBody = 1 << 10

// codeTransport says that executor and harness want different transports.
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

// connectDirect answers a harness that asks for the direct transport. No harness gets it that asks
// for the other one, and none is sent to the other one by this.
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

// directFor reads a request of the direct transport, and refuses it where the operator has not
// allowed that.
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

// otherTransport refuses a harness whose executor has the direct transport, or has not.
func otherTransport(direct bool) *apiError {
	message := "the executor of this environment does not offer the direct transport: ask for the encrypted one"
	if direct {
		message = "the executor of this environment is not encrypted from end to end: only a harness that asks for the direct transport reaches it"
	}
	return &apiError{status: http.StatusConflict, code: codeTransport, message: message}
}

// allowsDirect tells whether the operator lets an environment use the direct transport.
func (s *Server) allowsDirect(environmentID string) bool {
	return s.directPattern != "" && store.Matches(s.directPattern, environmentID)
}

// isSigned tells whether a request is signed as AWS does.
func isSigned(r *http.Request) bool {
	values := r.Header.Values("Authorization")
	return len(values) == 1 && sigv4.IsClaim(values[0])
}

// authenticateSigned finds the principal of a signed request. It reads the body, which is there
// again afterwards. A signature can be used again for 15 minutes, by who has read the request: it
// registers what it has registered before, for a URL that needs another signature.
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

// signedBy tells whether the request for a websocket is signed by a principal.
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

// errNameless is why a registry takes no signature for the host of a request: nobody has told it
// that this host is the registry.
var errNameless = errors.New("this registry takes signed requests for the host of its --public-url alone, which is not set (registry serve --public-url)")

// knownAs are the hosts and paths by which the client may have come: as the operator says, and as
// the request says if it names that host or this machine. Nothing else counts: whatever a request
// or a proxy says, a server of another name could pass on to this one what an executor has signed
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
