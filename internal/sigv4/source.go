package sigv4

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/execagent/execagent/auth"
)

const defaultProfile = "default"

// defaultService is the service for which requests are signed if no service is named.
const defaultService = "execute-api"

// early is the time before the end of temporary keys at which new keys are fetched.
const early = 5 * time.Minute

// Variables that hold credentials, or the means to get them.
const (
	varAccessKeyID  = "AWS_ACCESS_KEY_ID"
	varSecretKey    = "AWS_SECRET_ACCESS_KEY"
	varSessionToken = "AWS_SESSION_TOKEN"
	varRelativeURI  = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"
	varFullURI      = "AWS_CONTAINER_CREDENTIALS_FULL_URI"
	varToken        = "AWS_CONTAINER_AUTHORIZATION_TOKEN"
	varTokenFile    = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"
)

// Secret reports whether a variable holds credentials that a [Source] may use, or the means to get
// them. If a profile is named, a Source ignores the keys in variables. If the profile has no keys,
// it still uses the variables for the container endpoint.
func Secret(name string) bool {
	return slices.Contains([]string{varAccessKeyID, varSecretKey, varSessionToken, varRelativeURI, varFullURI, varToken, varTokenFile}, name)
}

var (
	// ErrNoRegion says that neither a flag nor any other source names a region, in the words of the
	// reference.
	ErrNoRegion = errors.New("AWS SDK config did not resolve a region: give --aws-region, or set AWS_REGION")
	// ErrNoKeys says that no source has credentials.
	ErrNoKeys = errors.New("no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile with --aws-profile; no container and no instance endpoint has any")
)

// Config says where to look for credentials. Lookup is required.
type Config struct {
	Profile string // profile of the shared files; if it is set, keys in the environment are ignored
	Region  string // has priority over the region of the environment, the profile and the instance
	Service string // empty: defaultService

	// Lookup returns a variable. A Source uses nothing else of the environment.
	Lookup func(name string) (string, bool)
	// Transport reaches the endpoints of containers and instances. Nil: direct connections without a
	// proxy.
	Transport http.RoundTripper
	// Check returns an error for a file that must not be used. Nil: every file may be used.
	Check func(path string) error
}

// A Source is an [auth.RequestSigner]: it signs each request with the keys that are valid at the
// time. It uses the first keys that it finds: in the environment, in the profile of the shared
// files, at the endpoint of the container, or at that of the instance. Files are read each time, so
// that keys may be renewed there. Keys from an endpoint are kept until shortly before they expire.
// All methods may be called concurrently.
type Source struct {
	cfg       Config
	scope     Scope
	fixed     *Keys // keys of the environment
	endpoints *endpoints

	turn    chan struct{} // holds a value while a call fetches; only this call uses the field below
	fetched *Keys         // last keys from an endpoint
}

// Open returns a source with a known region. It reads files and may ask the endpoint of the
// instance for the region. It does not look for keys.
func Open(ctx context.Context, cfg Config) (*Source, error) {
	s := &Source{cfg: cfg, endpoints: newEndpoints(cfg), turn: make(chan struct{}, 1)}
	s.scope = Scope{Region: strings.TrimSpace(cfg.Region), Service: cfg.Service}
	s.scope.Service = cmp.Or(s.scope.Service, defaultService)
	if keys, err := environmentKeys(cfg); err != nil {
		return nil, err
	} else if keys.AccessKeyID != "" {
		s.fixed = &keys
	}
	if s.scope.Region == "" {
		var err error
		if s.scope.Region, err = s.region(ctx); err != nil {
			return nil, err
		}
	}
	if !isWord(s.scope.Region) || !isWord(s.scope.Service) {
		return nil, errors.New("AWS region or service holds other characters than letters, digits, _ and -")
	}
	return s, nil
}

// value returns a variable without surrounding blanks.
func (cfg *Config) value(name string) string {
	text, _ := cfg.Lookup(name)
	return strings.TrimSpace(text)
}

// environmentKeys returns the keys in the environment, or none if a profile is named.
func environmentKeys(cfg Config) (Keys, error) {
	k := Keys{AccessKeyID: cfg.value(varAccessKeyID), SecretAccessKey: cfg.value(varSecretKey), SessionToken: cfg.value(varSessionToken)}
	switch {
	case cfg.Profile != "" || k.AccessKeyID == "" && k.SecretAccessKey == "":
		return Keys{}, nil
	case k.AccessKeyID == "" || k.SecretAccessKey == "":
		return Keys{}, errors.New(varAccessKeyID + " and " + varSecretKey + " need each other")
	}
	return k, k.check("the environment")
}

// check returns an error for keys that do not fit into a header. where names their source.
func (k Keys) check(where string) error {
	for _, part := range []struct{ name, text string }{{"access key id", k.AccessKeyID}, {"session token", k.SessionToken}} {
		if len(part.text) > maxToken || strings.ContainsFunc(part.text, func(c rune) bool { return c <= ' ' || c > '~' }) {
			return fmt.Errorf("%s of %s is too long, or not printable ASCII", part.name, where)
		}
	}
	if !isWord(k.AccessKeyID) || k.SecretAccessKey == "" {
		return fmt.Errorf("access key of %s is empty, or holds other characters than letters, digits, _ and -", where)
	}
	return nil
}

// region looks for a region in the environment, in the profile and at the instance, in this order.
func (s *Source) region(ctx context.Context) (string, error) {
	for _, name := range []string{"AWS_REGION", "AWS_DEFAULT_REGION"} {
		if region := s.cfg.value(name); region != "" {
			return region, nil
		}
	}
	p, err := s.profile()
	if err != nil {
		return "", err
	}
	if region := p.settings["region"]; region != "" {
		return region, nil
	}
	if region := s.endpoints.region(ctx); region != "" {
		return region, nil
	}
	return "", ErrNoRegion
}

// profile has the settings of a profile in the shared files.
type profile struct {
	name     string
	settings map[string]string // the file of credentials has priority
	file     string            // the file that has the keys; empty: none has
}

// elsewhere are settings that name other ways to fetch the credentials of a profile. These ways are
// not supported: each needs a service, a program or a browser of its own.
var elsewhere = []string{"role_arn", "credential_process", "sso_session", "sso_start_url", "web_identity_token_file"}

// files returns the paths of the shared files. A path is empty if it is not known.
func (cfg *Config) files() (credentials, settings string) {
	at := func(variable, name string) string {
		path := cfg.value(variable)
		home := cfg.value("HOME")
		if rest, ok := strings.CutPrefix(path, "~/"); ok && home != "" {
			return filepath.Join(home, rest)
		}
		if path == "" && home != "" {
			path = filepath.Join(home, ".aws", name)
		}
		return path
	}
	return at("AWS_SHARED_CREDENTIALS_FILE", "credentials"), at("AWS_CONFIG_FILE", "config")
}

// profile reads the shared files.
func (s *Source) profile() (profile, error) {
	p := profile{name: cmp.Or(s.cfg.Profile, s.cfg.value("AWS_PROFILE"), defaultProfile), settings: make(map[string]string)}
	credentials, settings := s.cfg.files()
	for _, file := range []struct {
		path     string
		prefixed bool
	}{{settings, true}, {credentials, false}} {
		if file.path == "" {
			continue
		}
		all, err := readSections(file.path)
		if err != nil {
			return profile{}, fmt.Errorf("reading the AWS profile: %w", err)
		}
		for name, value := range all.profile(p.name, file.prefixed) {
			p.settings[name] = value
			if name == "aws_access_key_id" {
				p.file = file.path
			}
		}
	}
	return p, nil
}

// profileKeys returns the keys of the profile, or none if it has none.
func (s *Source) profileKeys() (Keys, error) {
	p, err := s.profile()
	if err != nil {
		return Keys{}, err
	}
	k := Keys{
		AccessKeyID: p.settings["aws_access_key_id"], SecretAccessKey: p.settings["aws_secret_access_key"],
		SessionToken: p.settings["aws_session_token"],
	}
	if k.AccessKeyID == "" && k.SecretAccessKey == "" {
		for _, name := range elsewhere {
			if p.settings[name] != "" {
				return Keys{}, fmt.Errorf("AWS profile %.64q has %s, by which credentials cannot be fetched here: give it keys, or set %s and %s", p.name, name, varAccessKeyID, varSecretKey)
			}
		}
		return Keys{}, nil
	}
	if s.cfg.Check != nil && p.file != "" {
		if err := s.cfg.Check(p.file); err != nil {
			return Keys{}, err
		}
	}
	return k, k.check("the AWS profile")
}

// File returns the shared file whose keys a [Source] of cfg would use, or "" if it would use none.
func File(cfg Config) string {
	if k, err := environmentKeys(cfg); err != nil || k.AccessKeyID != "" {
		return ""
	}
	p, err := (&Source{cfg: cfg}).profile()
	if err != nil {
		return ""
	}
	return p.file
}

// keys returns the keys that are valid now.
func (s *Source) keys(ctx context.Context) (Keys, error) {
	if s.fixed != nil {
		return *s.fixed, nil
	}
	if k, err := s.profileKeys(); err != nil || k.AccessKeyID != "" {
		return k, err
	}
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return Keys{}, context.Cause(ctx)
	}
	defer func() { <-s.turn }()
	now := time.Now()
	last := s.fetched
	if last != nil && (last.Expires.IsZero() || now.Before(last.Expires.Add(-early))) {
		return *last, nil
	}
	k, err := s.endpoints.keys(ctx)
	switch {
	case err == nil:
		s.fetched = &k
		return k, nil
	case last != nil && now.Before(last.Expires):
		return *last, nil // the endpoint may answer again before these keys expire
	case last != nil:
		return Keys{}, fmt.Errorf("%w: %w", auth.ErrTemporary, err)
	}
	return Keys{}, err
}

// SignRequest signs a request with its body.
func (s *Source) SignRequest(ctx context.Context, r *http.Request, body []byte) error {
	k, err := s.keys(ctx)
	if err != nil {
		return err
	}
	return k.Sign(ctx, r, body, s.scope, time.Now())
}

// Authorize always fails: it is for requests of which only the headers are known, and such requests
// cannot be signed.
func (s *Source) Authorize(context.Context, http.Header) error {
	return errors.New("AWS signatures are for whole requests, those of the direct transport")
}

// Unauthorized returns false because it has no newer keys: a Source looks for keys before each
// request.
func (s *Source) Unauthorized(context.Context) (bool, error) { return false, nil }
