package egress

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/execagent/execagent/netproxy/intercept"
	"github.com/execagent/execagent/netproxy/mask"
	"github.com/execagent/execagent/protocol"
)

// maxRoots bounds the file of the roots that this host trusts, in bytes.
const maxRoots = 16 << 20

// rootFiles are where hosts have these roots.
var rootFiles = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
}

// trust is whom processes trust whose requests are looked into: one authority for all, whose key
// is in the memory of this program alone, and a file with its certificate and the host's roots.
type trust struct {
	mu        sync.Mutex // guards what follows
	authority *intercept.Authority
	dir       string // of the file; "": there is none yet
}

// get returns the authority and the path of the file, which it makes at the first call. Commands
// that may write there could have changed the file: then it is as it was again.
func (t *trust) get() (*intercept.Authority, string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.authority == nil {
		roots, err := hostRoots()
		if err != nil {
			return nil, "", err
		}
		if t.authority, err = intercept.NewAuthority(roots); err != nil {
			return nil, "", err
		}
	}
	if t.dir == "" {
		var err error
		if t.dir, err = trustDir(); err != nil {
			return nil, "", fmt.Errorf("a place for the certificate of the proxies: %w", err)
		}
	}
	path := filepath.Join(t.dir, "trusted.crt")
	want := t.authority.Bundle()
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, want) {
		return t.authority, path, nil
	}
	next := path + ".new"
	err := errors.Join(os.RemoveAll(next), os.RemoveAll(path))
	if err == nil {
		err = os.WriteFile(next, want, 0o444)
	}
	if err == nil {
		err = os.Rename(next, path)
	}
	return t.authority, path, err
}

// close removes the file.
func (t *trust) close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dir == "" {
		return nil
	}
	dir := t.dir
	t.dir = ""
	return os.RemoveAll(dir)
}

// trustDir makes a directory that everybody may read, where commands write seldom, if there is
// such a place.
func trustDir() (dir string, err error) {
	for _, parent := range []string{os.Getenv("XDG_RUNTIME_DIR"), "/run", os.TempDir()} {
		if !filepath.IsAbs(parent) {
			continue
		}
		if dir, err = os.MkdirTemp(parent, "execagent-trust-"); err == nil {
			return dir, os.Chmod(dir, 0o755)
		}
	}
	return "", err
}

// hostRoots returns what this host trusts, in PEM; nothing where that is not known.
func hostRoots() ([]byte, error) {
	for _, path := range slices.Concat([]string{os.Getenv("SSL_CERT_FILE")}, rootFiles) {
		file, err := os.Open(path)
		if err != nil {
			continue
		}
		roots, err := io.ReadAll(io.LimitReader(file, maxRoots+1))
		_ = file.Close()
		if len(roots) > maxRoots {
			return nil, fmt.Errorf("%s has more than %d bytes", path, maxRoots)
		}
		return roots, err
	}
	return nil, nil
}

// masks tells whether a process is not to see credentials.
func (p *Plan) masks(o *Operator) bool { return p.asked.Proxy.CredentialMasking || len(o.Masking) > 0 }

// Bundle returns the path of a file that the process has to be able to read; "" for none.
func (n *Networks) Bundle(p *Plan) (path string, err error) {
	if !p.masks(n.said()) {
		return "", nil
	}
	_, path, err = n.trust.get()
	return path, err
}

// broker returns what masks the credentials in an environment. Equal credentials look equal in
// processes of one session and environment.
func (n *Networks) broker(p *Plan, o *Operator, session string, environ []string) (*mask.Broker, error) {
	n.secretOnce.Do(func() { _, _ = rand.Read(n.secret[:]) }) // it never fails
	scope := hmac.New(sha256.New, n.secret[:])
	environment := ""
	if p.asked.EnvironmentID != nil {
		environment = *p.asked.EnvironmentID
	}
	fmt.Fprintf(scope, "%q %q", session, environment)
	return mask.New(mask.Config{
		Environ: environ, Providers: providers(p.asked.Proxy.CredentialProviders, o.Masking), Scope: scope.Sum(nil), Log: n.Log,
	})
}

// providers returns those of a client and an operator. The operator's are what counts for the
// variables that they name, and nobody sees these.
func providers(client, operator map[string]protocol.CredentialProvider) map[string]mask.Provider {
	all := map[string]mask.Provider{}
	taken := map[string]bool{}
	for name, c := range operator {
		hidden := provider(c)
		hidden.Hide = true
		all["operator "+name] = hidden
		for _, env := range c.Env {
			taken[env] = true
		}
	}
	for name, c := range client {
		if !slices.ContainsFunc(c.Env, func(env string) bool { return taken[env] }) {
			all[name] = provider(c)
		}
	}
	return all
}

// CheckProvider returns why the provider of an operator is no use.
func CheckProvider(c protocol.CredentialProvider) error { return provider(c).Check() }

func provider(c protocol.CredentialProvider) mask.Provider {
	text := func(s *string) string {
		if s == nil {
			return ""
		}
		return *s
	}
	return mask.Provider{
		Env: c.Env, Patterns: c.Patterns, URLPrefixes: c.URLPrefixes, URLPrefixFromEnv: text(c.URLPrefixFromEnv),
		Auth: c.Auth, Header: text(c.Header), Prefix: text(c.Prefix),
	}
}
