package registry

import (
	"cmp"
	"context"
	"crypto/mlkem"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/internal/registry/limits"
	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/internal/strictjson"
)

// maxBody bounds a request body, in bytes; an honest body has 6 KiB. A principal may
// send one on each of its connections at once.
const maxBody = 16 << 10

// apiTimeout bounds the time that a request may take; executors give up after 10 s.
const apiTimeout = 8 * time.Second

// How long URLs and authorizations are valid. An executor opens every websocket with the URL of its
// last registration, and registers again when the rendezvous refuses that URL (remote.md 3.5); our
// executor also registers again after half of that time. A harness gets a new URL for each
// websocket.
const (
	executorTicketLife = 24 * time.Hour
	harnessTicketLife  = time.Minute
	authorizationLife  = time.Minute
)

// Codes of error answers, besides those of package wire.
const (
	codeBadRequest   = "bad_request"
	codeUnauthorized = "unauthorized"
	codeForbidden    = "forbidden"
	codeNotFound     = "not_found"
	codeMethod       = "method_not_allowed"
	codeTooLarge     = "payload_too_large"
	codeRateLimited  = "rate_limited"
	codeUnavailable  = "store_unavailable"
	codeInternal     = "internal_error"
)

// apiError is an answer that is not 200. Its message is for the people who run the client,
// and says nothing about the registry that the client did not send.
type apiError struct {
	status     int
	code       string
	message    string
	retryAfter time.Duration
}

// operation answers the requests for one path below an environment.
type operation struct {
	name  string
	role  ticket.Role // the role that a principal needs
	limit func(*limits.Limiter, *store.Principal) (retryAfter time.Duration, ok bool)
	serve func(*Server, context.Context, *call) (any, *apiError)
}

// call is a request that its principal may make.
type call struct {
	request       *http.Request
	principal     *store.Principal
	environmentID string
}

// operationOf finds the operation for the part of a path after the environment id.
func operationOf(suffix string) (operation, bool) {
	switch suffix {
	case wire.PathRegister:
		return operation{"register", ticket.Executor, (*limits.Limiter).Request, (*Server).register}, true
	case wire.PathValidate:
		return operation{"validate", ticket.Executor, (*limits.Limiter).Validation, (*Server).validate}, true
	case wire.PathConnect:
		return operation{"connect", ticket.Harness, (*limits.Limiter).Request, (*Server).connect}, true
	case wire.PathDirectRegister:
		return operation{operationDirectRegister, ticket.Executor, (*limits.Limiter).Request, (*Server).registerDirect}, true
	case wire.PathDirectConnect:
		return operation{"connect", ticket.Harness, (*limits.Limiter).Request, (*Server).connectDirect}, true
	}
	return operation{}, false
}

// serveAPI answers paths below wire.PathPrefix.
func (s *Server) serveAPI(w http.ResponseWriter, r *http.Request) {
	rest := strings.TrimPrefix(r.URL.Path, wire.PathPrefix)
	environmentID, suffix := rest, ""
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		environmentID, suffix = rest[:i], rest[i:]
	}
	op, ok := operationOf(suffix)
	if !ok {
		s.fail(w, "other", &apiError{status: http.StatusNotFound, code: codeNotFound, message: "no such path"})
		return
	}
	defer s.metrics.took(op.name, time.Now())
	ctx, cancel := context.WithTimeout(r.Context(), apiTimeout)
	defer cancel()
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	result, failure := s.perform(ctx, w, r, op, environmentID)
	if failure != nil {
		if failure.status == http.StatusMethodNotAllowed {
			w.Header().Set("Allow", http.MethodPost)
		}
		s.log.Debug("request refused", "operation", op.name, "environment", loggable(environmentID), "status", failure.status, "reason", failure.code)
		s.fail(w, op.name, failure)
		return
	}
	s.answer(w, op.name, http.StatusOK, result)
}

// perform finds the principal of a request, and checks that the principal may make the
// request, before it reads the body.
func (s *Server) perform(ctx context.Context, w http.ResponseWriter, r *http.Request, op operation, environmentID string) (any, *apiError) {
	if r.Method != http.MethodPost {
		return nil, &apiError{status: http.StatusMethodNotAllowed, code: codeMethod, message: "the method is not POST"}
	}
	p, failure := s.admit(ctx, r, op.name, environmentID, op.limit)
	if failure != nil {
		return nil, failure
	}
	if !wire.ValidEnvironmentID(environmentID) {
		return nil, &apiError{status: http.StatusBadRequest, code: codeBadRequest, message: "environment id is not 1 to 256 of [A-Za-z0-9_-]"}
	}
	if !p.May(op.role, environmentID) {
		return nil, forbidden(p, op.role)
	}
	keep(w, r, p)
	return op.serve(s, ctx, &call{request: r, principal: p, environmentID: environmentID})
}

// admit finds the principal of a request and counts the request against the principal's
// limit. It compares an assertion with earlier ones only after the limit has let the
// request through, because the store then remembers the assertion.
func (s *Server) admit(ctx context.Context, r *http.Request, operation, environmentID string,
	limit func(*limits.Limiter, *store.Principal) (retryAfter time.Duration, ok bool)) (*store.Principal, *apiError) {
	var p *store.Principal
	var assertion *auth.Assertion
	var err error
	if operation == operationDirectRegister && isSigned(r) {
		p, err = s.authenticateSigned(ctx, r)
	} else {
		p, assertion, err = s.authenticate(ctx, r)
	}
	if err == nil {
		if wait, ok := limit(s.limits, p); !ok {
			return nil, &apiError{status: http.StatusTooManyRequests, code: codeRateLimited, message: "too many requests", retryAfter: wait}
		}
		if assertion != nil {
			err = s.store.RefuseReplay(ctx, assertion)
		}
	}
	for _, refused := range [...]error{store.ErrUnauthorized, errNameless} {
		if errors.Is(err, refused) {
			return nil, &apiError{status: http.StatusUnauthorized, code: codeUnauthorized, message: refused.Error()}
		}
	}
	if err != nil {
		return nil, s.broken(operation, environmentID, err)
	}
	return p, nil
}

// owners are the holders of credentials, by role.
var owners = map[ticket.Role]string{ticket.Executor: "an executor", ticket.Harness: "a harness"}

// forbidden is the answer to a principal that lacks a role. It says what the credential is for,
// because its holder may know that.
func forbidden(p *store.Principal, role ticket.Role) *apiError {
	message := "the credential is not for this environment"
	if p.Role != role {
		message = "the credential is that of " + owners[p.Role] + ", and this takes that of " + owners[role]
	}
	return &apiError{status: http.StatusForbidden, code: codeForbidden, message: message}
}

// keep lets the connection of a principal's allowed request stay open, if the principal may have
// one more.
func keep(w http.ResponseWriter, r *http.Request, p *store.Principal) {
	if seat := seatOf(r); seat.know(p) {
		w.Header().Del("Connection")
	} else {
		seat.dismiss(w) // the connection still counts as a stranger's: no slow body may keep it
	}
}

// register stores an executor's key and answers with the signed URL of its websocket
// (remote.md 3.1).
func (s *Server) register(ctx context.Context, c *call) (any, *apiError) {
	var request wire.RegisterRequest
	if failure := c.decode(&request); failure != nil {
		return nil, failure
	}
	if request.SecurityProfile != wire.SecurityProfile {
		return nil, &apiError{status: http.StatusBadRequest, code: codeBadRequest, message: "security_profile is not " + wire.SecurityProfile}
	}
	if failure := checkKey("executor_public_key", request.ExecutorPublicKey); failure != nil {
		return nil, failure
	}
	base, failure := s.baseFor(c)
	if failure != nil {
		return nil, failure
	}
	reg, failure := s.enroll(c, func(allowed func() bool) (store.Registration, bool, error) {
		return s.store.Register(ctx, c.environmentID, request.ExecutorPublicKey, c.principal.ID, allowed, s.hasExecutor)
	})
	if failure != nil {
		return nil, failure
	}
	link := s.signer.URL(base, ticket.Ticket{
		Role: ticket.Executor, EnvironmentID: c.environmentID, RegistrationID: reg.ID,
		Principal: c.principal.ID, Expires: time.Now().Add(s.urlLife),
	})
	return wire.RegisterResponse{
		EnvironmentID: &c.environmentID, URL: &link,
		SecurityProfile: new(wire.SecurityProfile), ExecutorRegistrationID: &reg.ID,
	}, nil
}

// enroll stores a registration, if the principal may still register new environments.
func (s *Server) enroll(c *call, put func(allowed func() bool) (reg store.Registration, conflict bool, err error)) (store.Registration, *apiError) {
	var release func() // gives back the place for registering a new environment
	allowed := func() bool {
		if release == nil {
			release, _ = s.limits.Create(c.principal)
		}
		return release != nil
	}
	reg, conflict, err := put(allowed)
	if release != nil {
		defer release()
	}
	switch {
	case errors.Is(err, store.ErrNewEnvironments):
		return reg, &apiError{status: http.StatusTooManyRequests, code: codeRateLimited, message: err.Error(), retryAfter: limits.EnvironmentsTime / limits.MaxNewEnvironments}
	case err != nil:
		return reg, s.broken("register", c.environmentID, err)
	case conflict:
		return reg, &apiError{status: http.StatusServiceUnavailable, code: wire.CodeConflict, message: "another executor of this environment is online"}
	case release != nil:
		s.limits.Created(c.principal)
	}
	s.log.Tell(slog.LevelInfo, "executor registered", c.environmentID, reg.ID, c.principal.ID)
	return reg, nil
}

// hasExecutor reports whether the executor of a registration has a websocket here, of
// either transport.
func (s *Server) hasExecutor(registrationID string) bool {
	return s.rendezvous.HasExecutor(registrationID) || s.direct.HasExecutor(registrationID)
}

// validate tells an executor whether the registry has just let a harness connect to it
// (remote.md 3.2). The caller need not be the principal that registered, because an
// executor's credential may change while it runs (remote.md 12.5). Another executor of
// the environment learns nothing, because it does not know the authorization.
func (s *Server) validate(ctx context.Context, c *call) (any, *apiError) {
	var request wire.ValidateRequest
	if failure := c.decode(&request); failure != nil {
		return nil, failure
	}
	if failure := checkKey("harness_public_key", request.HarnessPublicKey); failure != nil {
		return nil, failure
	}
	if len(request.HarnessKeyAuthorization) > wire.MaxAuthorization {
		return nil, &apiError{status: http.StatusBadRequest, code: codeBadRequest, message: "harness_key_authorization is too long"}
	}
	refused := wire.ValidateResponse{}
	harness, ok := s.signer.OpenAuthorization(request.HarnessKeyAuthorization, c.environmentID,
		request.ExecutorRegistrationID, request.HarnessPublicKey, time.Now())
	if !ok {
		return refused, nil
	}
	// After connecting, the harness may have lost its right to connect, or the
	// executor may have lost its environment to another key.
	var current, allowed bool
	var currentErr, allowedErr error
	var wg sync.WaitGroup
	wg.Go(func() {
		var reg store.Registration
		reg, current, currentErr = s.store.Registration(ctx, c.environmentID)
		current = current && subtle.ConstantTimeCompare([]byte(reg.ID), []byte(request.ExecutorRegistrationID)) == 1
	})
	var p *store.Principal
	p, allowed, allowedErr = s.store.Principal(ctx, harness)
	wg.Wait()
	if err := cmp.Or(currentErr, allowedErr); err != nil {
		return nil, s.broken("validate", c.environmentID, err)
	}
	if !current || !allowed || !p.May(ticket.Harness, c.environmentID) {
		return refused, nil
	}
	return wire.ValidateResponse{Valid: true, Principal: s.signer.Pseudonym(c.environmentID, harness)}, nil
}

// connect answers a harness with the executor's key, the signed URL of a websocket, and
// an authorization, which the executor will ask the registry to validate (remote.md 9).
func (s *Server) connect(ctx context.Context, c *call) (any, *apiError) {
	var request wire.ConnectRequest
	if failure := c.decode(&request); failure != nil {
		return nil, failure
	}
	if failure := checkKey("harness_public_key", request.HarnessPublicKey); failure != nil {
		return nil, failure
	}
	base, failure := s.baseFor(c)
	if failure != nil {
		return nil, failure
	}
	reg, failure := s.online(ctx, c, false)
	if failure != nil {
		return nil, failure
	}
	now := time.Now()
	return wire.ConnectResponse{
		EnvironmentID: c.environmentID,
		URL: s.signer.URL(base, ticket.Ticket{
			Role: ticket.Harness, EnvironmentID: c.environmentID, RegistrationID: reg.ID,
			Principal: c.principal.ID, Expires: now.Add(harnessTicketLife),
		}),
		SecurityProfile:        wire.SecurityProfile,
		ExecutorRegistrationID: reg.ID,
		ExecutorPublicKey:      reg.Key,
		HarnessKeyAuthorization: s.signer.Authorization(c.environmentID, reg.ID, request.HarnessPublicKey, c.principal.ID,
			now.Add(authorizationLife)),
	}, nil
}

// online returns the registration of the executor that a harness asks for, if the executor is
// online and uses this transport.
func (s *Server) online(ctx context.Context, c *call, directly bool) (store.Registration, *apiError) {
	find := s.rendezvous.Online
	if directly {
		find = s.direct.Online
	}
	reg, found, err := s.store.Registration(ctx, c.environmentID)
	if err == nil && found && reg.Direct != directly {
		return reg, otherTransport(reg.Direct)
	}
	online := false
	if err == nil && found {
		online, err = find(ctx, c.environmentID, reg.ID)
	}
	if err != nil {
		return reg, s.broken("connect", c.environmentID, err)
	}
	if !online {
		return reg, &apiError{status: http.StatusConflict, code: wire.CodeEnvironmentOffline, message: "no executor of this environment is online"}
	}
	return reg, nil
}

// decode reads the body into v.
func (c *call) decode(v strictjson.Unmarshaler) *apiError {
	text, err := io.ReadAll(c.request.Body)
	if err == nil {
		err = strictjson.Unmarshal(text, v)
	}
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &apiError{status: http.StatusRequestEntityTooLarge, code: codeTooLarge, message: "the body is larger than " + strconv.Itoa(maxBody) + " bytes"}
	}
	return &apiError{status: http.StatusBadRequest, code: codeBadRequest, message: "the body is not what this operation takes: " + err.Error()}
}

// checkKey refuses a key that no handshake could use. wire.PublicKey has checked suite
// and lengths.
func checkKey(member string, key *wire.PublicKey) *apiError {
	if _, err := mlkem.NewEncapsulationKey768(key.MLKEM768); err != nil {
		return &apiError{status: http.StatusBadRequest, code: codeBadRequest, message: member + " has no valid ML-KEM-768 key"}
	}
	return nil
}

// baseFor returns the beginning of rendezvous URLs in the answer, see base.
func (s *Server) baseFor(c *call) (base *url.URL, failure *apiError) {
	u, err := s.base(c.request)
	if err != nil {
		return nil, &apiError{status: http.StatusBadRequest, code: codeBadRequest, message: err.Error()}
	}
	return u, nil
}

// broken answers a request for which the store failed. register answers 502 with the
// code CodeAuthUnavailable: besides a conflict, that is the only error after which the
// reference retries by itself (remote.md 3.4). A retry is safe even if the registration
// was stored, because the same key keeps it.
func (s *Server) broken(operation, environmentID string, err error) *apiError {
	s.log.Trouble("the store fails", "operation", operation, "environment", loggable(environmentID), "error", err)
	switch {
	case !errors.Is(err, store.ErrUnavailable):
		return &apiError{status: http.StatusInternalServerError, code: codeInternal, message: "internal error"}
	case operation == "register":
		return &apiError{status: http.StatusBadGateway, code: wire.CodeAuthUnavailable, message: store.ErrUnavailable.Error(), retryAfter: time.Second}
	}
	return &apiError{status: http.StatusServiceUnavailable, code: codeUnavailable, message: store.ErrUnavailable.Error(), retryAfter: time.Second}
}

// loggable returns an environment id for the log, or "not valid" for any other text that
// a stranger may have sent.
func loggable(environmentID string) string {
	if wire.ValidEnvironmentID(environmentID) {
		return environmentID
	}
	return "not valid"
}

// fail answers a request with an error.
func (s *Server) fail(w http.ResponseWriter, operation string, e *apiError) {
	if e.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.FormatFloat(math.Ceil(e.retryAfter.Seconds()), 'f', 0, 64))
	}
	if e.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	var body wire.Error
	body.Error.Code, body.Error.Message = e.code, e.message
	s.answer(w, operation, e.status, body)
}

// answer counts an answer and writes it, with body as JSON.
func (s *Server) answer(w http.ResponseWriter, operation string, status int, body any) {
	s.metrics.answered(operation, status)
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // only for types that JSON cannot encode
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	h.Set("Cache-Control", "no-store") // URLs and authorizations are credentials
	w.WriteHeader(status)
	_, _ = w.Write(text) // a client that has left needs no answer
}
