package executor

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/cmd/agent/internal/target"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/conns"
	"github.com/execagent/execagent/internal/secretfile"
	"github.com/execagent/execagent/internal/sigv4"
)

// SignIn holds the settings of the environment for the credentials of an executor at a registry
// (remote.md 2 and 12). Only this file reads these variables. The flags choose the credential: see
// [SignIn.source].
type SignIn struct {
	token    string // an agent identity or an API key; empty: none is used
	workload *auth.WorkloadConfig

	home        string // CODEX_HOME or ~/.codex, where auth.json is; empty: unknown
	authAPIBase string
	jwksBase    string
	refreshURL  string
	aws         sigv4.Config // with the variables that it needs, if the flags ask for AWS signatures
	// Roots are the trusted roots for signing in, nil for a registry over plain http.
	Roots *x509.CertPool
	// Registry are the trusted roots for the registry: only the roots of --tls-ca, or Roots.
	Registry *x509.CertPool
	logger   *slog.Logger
}

// errNoKey says that there is no credential, and how to give one.
var errNoKey = errors.New("no credential for the registry: set CODEX_API_KEY, name a file with --api-key-file, pass it with --registration-bearer-stdin, or sign in with codex login")

// newSignIn reads the environment and keeps the one key that the flags ask for. It
// clears sys.Keys, so that no other key stays in memory.
func newSignIn(sys program.System, flags *Flags, logger *slog.Logger) (*SignIn, error) {
	defer sys.Keys.Clear()
	value := func(name string) string {
		text, _ := sys.Lookup(name)
		return strings.TrimSpace(text)
	}
	s := &SignIn{
		logger:      logger,
		home:        value("CODEX_HOME"),
		authAPIBase: value("CODEX_AGENT_IDENTITY_AUTHAPI_BASE_URL"),
		jwksBase:    value("CODEX_AGENT_IDENTITY_JWKS_BASE_URL"),
		refreshURL:  value("CODEX_REFRESH_TOKEN_URL_OVERRIDE"),
	}
	if home := value("HOME"); s.home == "" && home != "" {
		s.home = filepath.Join(home, ".codex")
	}
	switch {
	case flags.AWSSigV4:
		s.aws = flags.aws(sys)
	case flags.UseAgentIdentityAuth:
		if s.token = value("CODEX_ACCESS_TOKEN"); s.token == "" {
			return nil, errors.New("--use-agent-identity-auth needs an agent identity in CODEX_ACCESS_TOKEN")
		}
	case len(flags.sources()) == 0:
		if s.workload = workloadOf(sys); s.workload != nil {
			if err := s.workload.Valid(); err != nil {
				return nil, err
			}
			break
		}
		if s.token = value("CODEX_API_KEY"); s.token == "" {
			s.token = value("CODEX_EXEC_SERVER_REMOTE_BEARER_TOKEN") // of older releases of the reference
		}
	}
	var err error
	s.Roots, err = target.Roots(*flags.Remote, value("SSL_CERT_FILE"), value("CODEX_CA_CERTIFICATE"))
	s.Registry = s.Roots
	if err == nil && flags.TLSCA != "" {
		// A user who can change the file can pose as the registry, and choose the clients.
		if err = secretfile.Refuse(flags.TLSCA); err == nil {
			s.Registry, err = target.Authorities(flags.TLSCA)
		}
	}
	return s, err
}

// workloadOf returns the settings of a workload identity, or nil if no variable asks for one. A variable
// that is empty asks for one, too, as in the reference: then the error says what is missing, and no
// other credential is used.
func workloadOf(sys program.System) *auth.WorkloadConfig {
	rule, hasRule := sys.Lookup("OPENAI_FEDERATION_RULE_ID")
	file, hasFile := sys.Lookup("OPENAI_IDENTITY_TOKEN_FILE")
	source, hasSource := sys.Lookup("OPENAI_IDENTITY_TOKEN_SOURCE")
	if !hasRule && !hasFile && !hasSource {
		return nil
	}
	about, _ := sys.Lookup("OPENAI_WORKLOAD_IDENTITY_CONTEXT")
	return &auth.WorkloadConfig{
		RuleID: strings.TrimSpace(rule), TokenFile: file, TokenSource: source, Context: strings.TrimSpace(about), Check: secretfile.Refuse,
	}
}

// Secrets returns the file that holds the used credentials: the file of --api-key-file or of the
// identity token, a shared file of AWS, or auth.json. It returns nil if another flag or a variable gives the credentials.
func (s *SignIn) Secrets(flags *Flags) []string {
	if flags.APIKeyFile != "" {
		return []string{flags.APIKeyFile}
	}
	if flags.AWSSigV4 {
		if file := sigv4.File(s.aws); file != "" {
			return []string{file}
		}
		return nil
	}
	if s.workload != nil {
		return []string{s.workload.TokenFile}
	}
	if s.token != "" || len(flags.sources()) > 0 || s.home == "" {
		return nil
	}
	return []string{filepath.Join(s.home, "auth.json")}
}

// Mounted reports whether the file of Secrets lies where only secrets should be, unlike auth.json in
// CODEX_HOME and the shared files of AWS.
func (s *SignIn) Mounted(flags *Flags) bool { return flags.APIKeyFile != "" || s.workload != nil }

// source returns the credentials that sign requests. If they come on standard input, source waits
// for the first of them. The caller closes rotating credentials (*auth.Credentials).
func (s *SignIn) source(ctx context.Context, stdin *os.File, flags *Flags) (auth.TokenSource, error) {
	services := auth.HTTPConfig{RootCAs: s.Roots, Proxy: conns.ProxyOf}
	switch {
	case flags.AWSSigV4:
		source, err := sigv4.Open(ctx, s.aws)
		if err != nil {
			return nil, err // not source, because a nil *Source makes a TokenSource that is not nil
		}
		return source, nil
	case flags.UseAgentIdentityAuth:
		return auth.NewAgentIdentity(ctx, auth.IdentityConfig{
			Token: s.token, AuthAPIBase: s.authAPIBase, JWKSBase: s.jwksBase, HTTP: services,
		})
	case flags.APIKeyFile != "":
		return auth.OpenKeyFile(flags.APIKeyFile, auth.KeyFileConfig{Check: secretfile.Refuse, Logger: s.logger})
	case flags.RegistrationBearerStdin:
		return auth.ReadBearer(ctx, stdin)
	case flags.ChatGPTTokenStdin:
		return auth.ReadChatGPTToken(ctx, stdin, flags.ChatGPTAccountID)
	case flags.ExecutorCredentialStdin:
		return auth.ReadCredentials(ctx, stdin, flags.id())
	case s.workload != nil:
		cfg := *s.workload
		cfg.HTTP, cfg.Logger = services, s.logger
		return auth.NewWorkloadIdentity(ctx, cfg)
	case s.token != "":
		return auth.APIKey(s.token), nil
	case s.home == "":
		return nil, errNoKey
	}
	signIn, err := auth.OpenSignIn(s.home, auth.SignInConfig{RefreshURL: s.refreshURL, HTTP: services})
	if errors.Is(err, auth.ErrNoCredential) {
		return nil, errNoKey
	}
	if err != nil {
		return nil, err
	}
	return signIn, nil
}
