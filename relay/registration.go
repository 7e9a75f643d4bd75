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

// RegistryError is an answer of a registry that is not 2xx: its Status, a Code such as
// environment_offline, and a Message for people.
type RegistryError = api.Error

// Environment describes an environment to a harness: its ID, whether its executor is Online and
// Since when, and the operator's name for the Executor.
type Environment = wire.Environment

// Identity is the key pair of one process, a [Link] or any number of Dialers. It is made when the
// process starts, and never stored.
type Identity = noise.Identity

// NewIdentity makes new keys.
func NewIdentity() (*Identity, error) { return noise.NewIdentity() }

// maxPrincipal bounds a registry's name for the principal of a harness, in bytes.
const maxPrincipal = 512

// ErrNotValid is the error of [Registry.validate] if the registry says no.
var ErrNotValid = errors.New("the registry does not let this harness connect")

// RegistryConfig has the registry to call, the environment to ask about, and
// the credential. BaseURL, EnvironmentID and Tokens are required.
type RegistryConfig struct {
	// BaseURL is https, or http to loopback, without userinfo, query and fragment;
	// blanks around it and slashes at its end are ignored.
	BaseURL string
	// EnvironmentID has 1 to 256 characters of A-Z, a-z, 0-9, _ and -; blanks
	// around it are ignored.
	EnvironmentID string
	Tokens        auth.TokenSource
	// Logger gets a line for every repeated registration; nil discards.
	Logger *slog.Logger
	// RootCAs, if set, replaces the trusted roots of the system.
	RootCAs *x509.CertPool
	// Proxy returns the proxy for a request. If it is nil, and for loopback
	// hosts, no proxy is used.
	Proxy func(*http.Request) (*url.URL, error)
}

// Registry is the client of a registry's HTTP API, for one environment. It keeps
// connections open; Close drops them. All methods may be called concurrently. Its errors
// and log lines contain no credential, no authorization and no URL of a rendezvous.
type Registry struct {
	*caller

	environmentID string
	logger        *slog.Logger
}

// caller makes the calls. The alias makes the embedded field unexported.
type caller = api.Caller

// registration is the registry's answer to a registering executor: the address to
// connect to.
type registration struct {
	// URL is the rendezvous, unchecked and maybe empty; it is a credential.
	URL string `json:"-"`
	ID  string // may be empty
}

// Format leaves the URL out.
func (r registration) Format(f fmt.State, _ rune) { writeString(f, "registration "+r.ID) }

// LogValue leaves the URL out.
func (r registration) LogValue() slog.Value { return slog.StringValue(r.ID) }

// connectAnswer is a registry's answer to a harness that wants to connect, valid
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
	_, _ = io.WriteString(f, text) // fmt.State cannot report an error
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

// EnvironmentID returns the id of the environment.
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
// cannot check credentials now, and while the credential is temporarily
// unavailable. Every other failure is final, because the call may have succeeded
// although its answer was lost, and a repetition could replace a newer registration
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
// stream: nil means yes, [ErrNotValid] no, and every other error means no too. It
// takes at most 10 s (remote.md 3.2). principal is the registry's name for the
// harness's principal, "" if unknown.
func (r *Registry) validate(ctx context.Context, registrationID string, key *wire.PublicKey, authorization string, streamID []byte) (principal string, err error) {
	ctx, cancel := api.WithTimeout(ctx)
	defer cancel()
	request := wire.ValidateRequest{
		ExecutorRegistrationID: registrationID, HarnessPublicKey: key, HarnessKeyAuthorization: authorization,
	}
	// This header has no value, so it is not sent. It tells net/http to repeat a
	// request whose idle connection turns out to be closed, because asking twice
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

// connect asks the registry once for the executor's address and key.
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

// check refuses an answer about another environment or security profile than
// the question.
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
