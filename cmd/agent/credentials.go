package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/httpclient"
)

// maxCertificates is how long a bundle of trusted roots may be, in bytes.
const maxCertificates = 4 << 20

// signIn is how an executor proves to a registry who it is: what the
// environment says of it (remote.md 2 and 12), which only this file reads.
type signIn struct {
	token string // of one of the variables, as the flags want it; empty: auth.json

	home        string // CODEX_HOME, where auth.json is
	authAPIBase string
	jwksBase    string
	refreshURL  string
	roots       *x509.CertPool
}

// newSignIn reads the environment. Of its keys, all of which are then cleared,
// it keeps the one that is used.
func newSignIn(sys system, flags *remoteFlags) (*signIn, error) {
	defer sys.keys.Clear()
	value := func(name string) string {
		text, _ := sys.lookup(name)
		return strings.TrimSpace(text)
	}
	s := &signIn{
		home:        value("CODEX_HOME"),
		authAPIBase: value("CODEX_AGENT_IDENTITY_AUTHAPI_BASE_URL"),
		jwksBase:    value("CODEX_AGENT_IDENTITY_JWKS_BASE_URL"),
		refreshURL:  value("CODEX_REFRESH_TOKEN_URL_OVERRIDE"),
	}
	if home := value("HOME"); s.home == "" && home != "" {
		s.home = filepath.Join(home, ".codex")
	}
	switch {
	case flags.UseAgentIdentityAuth:
		if s.token = value("CODEX_ACCESS_TOKEN"); s.token == "" {
			return nil, errors.New("--use-agent-identity-auth needs an agent identity in CODEX_ACCESS_TOKEN")
		}
	case len(flags.sources()) == 0:
		if s.token = value("CODEX_API_KEY"); s.token == "" {
			s.token = value("CODEX_EXEC_SERVER_REMOTE_BEARER_TOKEN") // of older releases of the reference
		}
	}
	var err error
	s.roots, err = trustedRoots(*flags.Remote, value("SSL_CERT_FILE"), value("CODEX_CA_CERTIFICATE"))
	return s, err
}

// secrets are the files that hold what is signed in with.
func (s *signIn) secrets(flags *remoteFlags) []string {
	if s.token != "" || len(flags.sources()) > 0 || s.home == "" {
		return nil
	}
	return []string{filepath.Join(s.home, "auth.json")}
}

// source returns what signs requests. It waits for a credential that comes on
// standard input. The caller closes a source of rotating credentials.
func (s *signIn) source(ctx context.Context, stdin *os.File, flags *remoteFlags) (auth.TokenSource, error) {
	services := auth.HTTPConfig{RootCAs: s.roots, Proxy: http.ProxyFromEnvironment}
	switch {
	case flags.UseAgentIdentityAuth:
		return auth.NewAgentIdentity(ctx, auth.IdentityConfig{
			Token: s.token, AuthAPIBase: s.authAPIBase, JWKSBase: s.jwksBase, HTTP: services,
		})
	case flags.RegistrationBearerStdin:
		return auth.ReadBearer(ctx, stdin)
	case flags.ChatGPTTokenStdin:
		return auth.ReadChatGPTToken(ctx, stdin, flags.ChatGPTAccountID)
	case flags.ExecutorCredentialStdin:
		return auth.ReadCredentials(ctx, stdin, flags.environmentID())
	case s.token != "":
		return auth.APIKey(s.token), nil
	case s.home == "":
		return nil, auth.ErrNoCredential
	}
	return auth.OpenSignIn(s.home, auth.SignInConfig{RefreshURL: s.refreshURL, HTTP: services})
}

// trustedRoots are those of the host, and the ones in files that are named; nil,
// and no milliseconds spent on reading them, for a registry over plain http.
func trustedRoots(registry string, files ...string) (*x509.CertPool, error) {
	if strings.HasPrefix(registry, "http:") {
		return nil, nil
	}
	roots := httpclient.TrustedRoots()
	for _, file := range files {
		if file == "" {
			continue
		}
		bundle, err := readBounded(file, maxCertificates)
		if err != nil {
			return nil, fmt.Errorf("reading trusted roots: %w", err)
		}
		if !roots.AppendCertsFromPEM(bundle) {
			return nil, fmt.Errorf("reading trusted roots: %s holds no certificate", file)
		}
	}
	return roots, nil
}

// readBounded reads a file of at most limit bytes.
func readBounded(file string, limit int64) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = fmt.Errorf("%s exceeds %d bytes", file, limit)
	}
	return content, err
}
