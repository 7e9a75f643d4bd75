package relay

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"

	"github.com/google/uuid"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/internal/relay/api"
	"github.com/execagent/execagent/internal/relay/noise"
	"github.com/execagent/execagent/internal/relay/wire"
)

// RegistryError is an answer of a registry that is not 2xx: its Status, and what the registry says,
// a Code such as environment_offline and a Message for people.
type RegistryError = api.Error

// Environment is what a harness is told of an environment: its ID, whether its executor is Online
// and Since when, and what the operator calls the Executor.
type Environment = wire.Environment

// Identity is the key pair of one process, a [Link] or any number of Dialers. It is made when the
// process starts, and never stored.
type Identity = noise.Identity

// NewIdentity makes new keys.
func NewIdentity() (*Identity, error) { return noise.NewIdentity() }

// maxPrincipal bounds what a registry calls the principal of a harness, in bytes.
const maxPrincipal = 512

// ErrNotValid is the error of [Registry.validate] when the registry says no.
var ErrNotValid = errors.New("the registry does not let this harness connect")

// RegistryConfig says which registry is called, about which environment and by
// whom. BaseURL, EnvironmentID and Tokens are required.
type RegistryConfig struct {
	// BaseURL is https, or http to loopback, without userinfo, query and fragment;
	// blanks around it and slashes at its end do not count.
	BaseURL string
	// EnvironmentID is 1 to 256 of A-Z, a-z, 0-9, _ and -; blanks around it do not
	// count.
	EnvironmentID string
	Tokens        auth.TokenSource
	// Logger gets a line for every registration that is repeated; nil: nothing is
	// logged.
	Logger *slog.Logger
	// RootCAs, if set, replaces the trusted roots of the system.
	RootCAs *x509.CertPool
	// Proxy returns the proxy for a request. None is used if it is nil, nor for
	// loopback hosts.
	Proxy func(*http.Request) (*url.URL, error)
}

// Registry is the client of a registry's HTTP API, for one environment. It keeps
// connections open; Close drops them. All methods may be called concurrently. The
// errors and the log lines of a Registry show no credential, no authorization and no URL
// of a rendezvous.
type Registry struct {
	*caller

	environmentID string
	logger        *slog.Logger
}

// caller makes the calls. As a field it has a name that is not exported.
type caller = api.Caller

// registration is the registry's answer to an executor that has registered: where
// the executor has to connect.
type registration struct {
	// URL is the rendezvous, unchecked and maybe empty; it is a credential.
	URL string `json:"-"`
	ID  string // may be empty
}

// Format leaves the URL out.
func (r registration) Format(f fmt.State, _ rune) { writeString(f, "registration "+r.ID) }

// LogValue leaves the URL out.
func (r registration) LogValue() slog.Value { return slog.StringValue(r.ID) }

// connectAnswer is what a registry answers to a harness that wants to connect, good
// for one websocket. None of its fields is empty.
type connectAnswer struct {
	URL            string `json:"-"` // the rendezvous; a credential
	RegistrationID string
	ExecutorKey    *wire.PublicKey
	Authorization  string `json:"-"` // for the handshake; at most wire.MaxAuthorization bytes
}

// Format leaves the credentials out.
func (c connectAnswer) Format(f fmt.State, _ rune) { writeString(f, "connection to "+c.RegistrationID) }

// LogValue leaves the credentials out.
func (c connectAnswer) LogValue() slog.Value { return slog.StringValue(c.RegistrationID) }

func writeString(f fmt.State, text string) {
	_, _ = io.WriteString(f, text) // fmt has nowhere to tell an error
}

// NewRegistry checks cfg. It sends nothing yet.
func NewRegistry(cfg RegistryConfig) (*Registry, error) {
	id := strings.TrimSpace(cfg.EnvironmentID)
	if !wire.ValidEnvironmentID(id) {
		return nil, errors.New("environment id is not 1 to 256 of A-Z, a-z, 0-9, _ and -")
	}
	r, err := newRegistry(cfg, wire.PathPrefix+id)
	if err != nil {
		return nil, err
	}
	r.environmentID, r.logger = id, r.logger.With("environment", id)
	return r, nil
}

// EnvironmentID is the environment that the registry is asked about.
func (r *Registry) EnvironmentID() string { return r.environmentID }

// newRegistry makes a client for the paths that begin with one.
func newRegistry(cfg RegistryConfig, path string) (*Registry, error) {
	calls, err := api.New(api.Config{BaseURL: cfg.BaseURL, Tokens: cfg.Tokens, RootCAs: cfg.RootCAs, Proxy: cfg.Proxy}, path)
	if err != nil {
		return nil, err
	}
	logger := cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	return &Registry{caller: calls, logger: logger}, nil
}

// register tells the registry the executor's key. It repeats the call without limit
// while the registry answers that another registration is in the way or that it
// cannot check credentials just now, and while the credential itself cannot be had
// for a passing reason. Every other failure is final: the call may have succeeded
// although its answer got lost, and a repetition could replace a newer registration
// (remote.md 3.4).
func (r *Registry) register(ctx context.Context, key *wire.PublicKey) (*registration, error) {
	return r.registerAs(ctx, key, api.RegisterAgain)
}

// registerOnce is register without repetitions.
func (r *Registry) registerOnce(ctx context.Context, key *wire.PublicKey) (*registration, error) {
	return r.registerAs(ctx, key, func(error) bool { return false })
}

func (r *Registry) registerAs(ctx context.Context, key *wire.PublicKey, again func(error) bool) (*registration, error) {
	request := wire.RegisterRequest{SecurityProfile: wire.SecurityProfile, ExecutorPublicKey: key}
	var response wire.RegisterResponse
	err := api.Repeat(ctx, r.logger, "registration is repeated", again, func() error {
		response = wire.RegisterResponse{}
		// A failure of the network is final here. On an idle connection the call
		// would fail if the registry was just closing it, so use a new one.
		r.Close()
		return r.Call(ctx, wire.PathRegister, &request, &response, nil)
	})
	if err == nil {
		switch {
		case response.EnvironmentID == nil || response.URL == nil || response.SecurityProfile == nil ||
			response.ExecutorRegistrationID == nil:
			err = errors.New("registry's answer lacks environment_id, url, security_profile or executor_registration_id")
		default:
			err = r.check(*response.EnvironmentID, *response.SecurityProfile)
		}
	}
	if err != nil {
		return nil, err
	}
	return &registration{URL: *response.URL, ID: *response.ExecutorRegistrationID}, nil
}

// validate asks whether a harness with this key and authorization may open the
// stream: nil means yes, [ErrNotValid] no, and every other error means no as well.
// It takes at most 10 s (remote.md 3.2). principal is what the registry calls the
// harness's principal, "" if it does not say.
func (r *Registry) validate(ctx context.Context, registrationID string, key *wire.PublicKey, authorization string, streamID []byte) (principal string, err error) {
	ctx, cancel := api.WithTimeout(ctx)
	defer cancel()
	request := wire.ValidateRequest{
		ExecutorRegistrationID: registrationID, HarnessPublicKey: key, HarnessKeyAuthorization: authorization,
	}
	// This header has no value and is therefore not sent. It tells net/http to
	// repeat a request whose idle connection turns out to be closed. Asking twice
	// does no harm.
	header := http.Header{"Idempotency-Key": {}}
	if id := canonicalUUID(streamID); id != "" {
		header.Set(wire.HeaderNoiseStreamID, id)
	}
	var response wire.ValidateResponse
	err = r.Call(ctx, wire.PathValidate, &request, &response, header)
	if refused, ok := errors.AsType[*RegistryError](err); ok {
		refused.Code, refused.Message = "", ""
	}
	switch {
	case err != nil:
		return "", err
	case !response.Valid:
		return "", ErrNotValid
	case len(response.Principal) > maxPrincipal:
		return "", fmt.Errorf("principal of the registry's answer is longer than %d bytes", maxPrincipal)
	}
	return response.Principal, nil
}

// connect asks once for a way to the executor.
func (r *Registry) connect(ctx context.Context, key *wire.PublicKey) (*connectAnswer, error) {
	request := wire.ConnectRequest{HarnessPublicKey: key}
	var response wire.ConnectResponse
	err := r.Call(ctx, wire.PathConnect, &request, &response, http.Header{"Idempotency-Key": {}})
	if err == nil {
		err = r.check(response.EnvironmentID, response.SecurityProfile)
	}
	if err == nil {
		switch {
		case strings.TrimSpace(response.URL) == "":
			err = errors.New("url of the registry's answer is blank")
		case strings.TrimSpace(response.ExecutorRegistrationID) == "":
			err = errors.New("executor_registration_id of the registry's answer is blank")
		case response.ExecutorPublicKey == nil:
			err = errors.New("executor_public_key of the registry's answer is missing")
		case strings.TrimSpace(response.HarnessKeyAuthorization) == "":
			err = errors.New("harness_key_authorization of the registry's answer is blank")
		case len(response.HarnessKeyAuthorization) > wire.MaxAuthorization:
			err = fmt.Errorf("harness_key_authorization of the registry's answer is longer than %d bytes", wire.MaxAuthorization)
		}
	}
	if err != nil {
		return nil, err
	}
	return &connectAnswer{
		URL: response.URL, RegistrationID: response.ExecutorRegistrationID,
		ExecutorKey: response.ExecutorPublicKey, Authorization: response.HarnessKeyAuthorization,
	}, nil
}

// check refuses an answer that is about another environment or another security
// profile than the question.
func (r *Registry) check(environmentID, profile string) error {
	switch {
	case environmentID != r.environmentID:
		return errors.New("environment_id of the registry's answer is of another environment")
	case profile != wire.SecurityProfile:
		return fmt.Errorf("security_profile of the registry's answer is not %s", wire.SecurityProfile)
	}
	return nil
}

// canonicalUUID returns a stream id that is a UUID, with hyphens or without, in
// lower case with hyphens; else "".
func canonicalUUID(id []byte) string {
	if len(id) != 36 && len(id) != 32 {
		return ""
	}
	parsed, err := uuid.ParseBytes(id)
	if err != nil {
		return ""
	}
	return parsed.String()
}
