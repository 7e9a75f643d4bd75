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

// defaultService is the service that requests are signed for where none is named.
const defaultService = "execute-api"

// early is how long before their end temporary keys are fetched anew.
const early = 5 * time.Minute

// Variables with credentials, or with what credentials can be had by.
const (
	varAccessKeyID  = "AWS_ACCESS_KEY_ID"
	varSecretKey    = "AWS_SECRET_ACCESS_KEY"
	varSessionToken = "AWS_SESSION_TOKEN"
	varRelativeURI  = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"
	varFullURI      = "AWS_CONTAINER_CREDENTIALS_FULL_URI"
	varToken        = "AWS_CONTAINER_AUTHORIZATION_TOKEN"
	varTokenFile    = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"
)

// Secret reports whether a variable holds credentials that a [Source] may use, or is what they can
// be had by. With a profile named, variables hold none.
func Secret(name string) bool {
	return slices.Contains([]string{varAccessKeyID, varSecretKey, varSessionToken, varRelativeURI, varFullURI, varToken, varTokenFile}, name)
}

var (
	// ErrNoRegion says that neither a flag nor anything else names a region, in the words of
	// the reference.
	ErrNoRegion = errors.New("AWS SDK config did not resolve a region: give --aws-region, or set AWS_REGION")
	// ErrNoKeys says that there are no credentials anywhere.
	ErrNoKeys = errors.New("no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile with --aws-profile; no container and no instance endpoint has any")
)

// Config says where credentials are looked for. Lookup is needed.
type Config struct {
	Profile string // of the shared files; then the keys of the environment do not count
	Region  string // before that of the environment, of the profile and of the instance
	Service string // empty: defaultService

	// Lookup finds a variable. Nothing else of the environment is used.
	Lookup func(name string) (string, bool)
	// Transport reaches the endpoints of containers and instances; nil: directly, and by no
	// proxy.
	Transport http.RoundTripper
	// Check refuses a file that must not be used; nil: none is refused.
	Check func(path string) error
}

// Source is an [auth.RequestSigner]: it signs each request anew with the keys that count at the
// time. Keys are looked for in the environment, in the profile of the shared files, at the
// endpoint of the container and at that of the instance: the first that has any counts. Files
// are read each time, so that keys may be renewed there; what an endpoint has said is kept until
// shortly before it expires. All methods may run at once.
type Source struct {
	cfg       Config
	scope     Scope
	fixed     *Keys // of the environment
	endpoints *endpoints

	turn    chan struct{} // holds a value while a call fetches; only that one uses the field below
	fetched *Keys         // the last that an endpoint has said
}

// Open returns a source whose region is known. It reads files and may ask the endpoint of the
// instance for the region. It does not look for keys yet.
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

// value returns a variable without the blanks around it.
func (cfg *Config) value(name string) string {
	text, _ := cfg.Lookup(name)
	return strings.TrimSpace(text)
}

// environmentKeys returns the keys in the environment, none if a profile is named.
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

// check refuses keys that fit into no header. where names their source.
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

// region looks for a region in the environment, the profile and at the instance.
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

// profile is what the shared files say of a profile.
type profile struct {
	name     string
	settings map[string]string // those of the file of credentials before the others
	file     string            // which has the keys; empty: none has
}

// elsewhere are settings by which a profile says that its credentials have to be fetched in a
// way that is not built: each takes a service, a program or a browser of its own.
var elsewhere = []string{"role_arn", "credential_process", "sso_session", "sso_start_url", "web_identity_token_file"}

// files returns the paths of the shared files, empty where they are not known.
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

// profileKeys returns the keys of the profile, none if it has none.
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

// File returns the shared file whose keys a [Source] of cfg would use, or "".
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

// keys returns the keys that count now.
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
		return *last, nil // the endpoint may answer by the time that these are over
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

// Authorize is for requests of which only the headers are known, which cannot be signed.
func (s *Source) Authorize(context.Context, http.Header) error {
	return errors.New("AWS signatures are for whole requests, those of the direct transport")
}

// Unauthorized has nothing fresher to offer: keys are looked for before each request.
func (s *Source) Unauthorized(context.Context) (bool, error) { return false, nil }
