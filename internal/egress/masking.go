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
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/netproxy/intercept"
	"github.com/execagent/execagent/internal/netproxy/mask"
	"github.com/execagent/execagent/protocol"
)

// maxRoots bounds the file of the roots that this host trusts, in bytes.
const maxRoots = 16 << 20

// rootFiles are the usual paths of these roots.
var rootFiles = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
}

// trust is the authority that processes trust if the proxy looks into their requests: one for all,
// whose key is only in the memory of this program, and a file with its certificate and the host's
// roots.
type trust struct {
	mu        sync.Mutex // guards what follows
	authority *intercept.Authority
	dir       *os.Root // of the file; nil: there is none yet
}

// trustFile is the name of the file.
const trustFile = "trusted.crt"

// get returns the authority and the path of the file, which it makes at the first call. Commands
// that may write there could have replaced the file or its directory: then get restores it. It
// follows no link, waits for nothing, and reads no more than the expected size.
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
	if t.dir != nil && !t.inPlace() {
		_ = t.dir.Close()
		t.dir = nil
	}
	if t.dir == nil {
		var err error
		if t.dir, err = trustDir(); err != nil {
			return nil, "", fmt.Errorf("a place for the certificate of the proxies: %w", err)
		}
	}
	path, want := filepath.Join(t.dir.Name(), trustFile), t.authority.Bundle()
	if t.has(want) {
		return t.authority, path, nil
	}
	return t.authority, path, t.write(want)
}

// inPlace reports whether the directory is still where it was made.
func (t *trust) inPlace() bool {
	made, err := t.dir.Stat(".")
	if err != nil {
		return false
	}
	there, err := os.Lstat(t.dir.Name())
	return err == nil && os.SameFile(made, there)
}

// has reports whether the file has that content.
func (t *trust) has(want []byte) bool {
	f, err := t.dir.OpenFile(trustFile, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || st.Size() != int64(len(want)) {
		return false
	}
	have := make([]byte, len(want))
	_, err = io.ReadFull(f, have)
	return err == nil && bytes.Equal(have, want)
}

// write makes the file, and replaces any object with its name.
func (t *trust) write(content []byte) error {
	next := trustFile + "." + rand.Text()
	f, err := t.dir.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Close(), t.dir.RemoveAll(trustFile)); err == nil {
		err = t.dir.Rename(next, trustFile)
	}
	if err != nil {
		_ = t.dir.Remove(next) // the first error counts
	}
	return err
}

// close removes the file.
func (t *trust) close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dir == nil {
		return nil
	}
	dir := t.dir
	t.dir = nil
	return errors.Join(dir.Close(), os.RemoveAll(dir.Name()))
}

// trustDir makes a directory that everybody may read, where commands write seldom, if there is
// such a place.
func trustDir() (dir *os.Root, err error) {
	for _, parent := range []string{os.Getenv("XDG_RUNTIME_DIR"), "/run", os.TempDir()} {
		if !filepath.IsAbs(parent) {
			continue
		}
		path, failed := os.MkdirTemp(parent, "execagent-trust-")
		if failed != nil {
			err = failed
			continue
		}
		if dir, err = os.OpenRoot(path); err == nil {
			return dir, dir.Chmod(".", 0o755)
		}
	}
	return nil, err
}

// hostRoots returns the roots that this host trusts, in PEM; none if they are not known.
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

// masks reports whether a process must not see credentials.
func (p *Plan) masks(o *Operator) bool { return p.asked.Proxy.CredentialMasking || len(o.Masking) > 0 }

// Hide returns the environment of a process without a proxy, without the variables that the
// operator hides from all processes, because without a proxy a placeholder would be useless.
func (n *Networks) Hide(environ []string) []string {
	hidden := map[string]bool{}
	for _, c := range n.said().Masking {
		for _, name := range c.Env {
			hidden[name] = true
		}
	}
	if len(hidden) == 0 {
		return environ
	}
	return slices.DeleteFunc(slices.Clone(environ), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return hidden[name]
	})
}

// Bundle returns the path of a file that the process must be able to read; "" for none.
func (n *Networks) Bundle(p *Plan) (path string, err error) {
	if !p.masks(n.said()) {
		return "", nil
	}
	_, path, err = n.trust.get()
	return path, err
}

// broker returns the broker that masks the credentials in an environment. Equal credentials have
// equal placeholders in processes of one session and environment.
func (n *Networks) broker(p *Plan, o *Operator, session string, environ []string) (*mask.Broker, error) {
	n.secretOnce.Do(func() { _, _ = rand.Read(n.secret[:]) }) // it never fails
	scope := hmac.New(sha256.New, n.secret[:])
	environment := ""
	if p.asked.EnvironmentID != nil {
		environment = *p.asked.EnvironmentID
	}
	fmt.Fprintf(scope, "%q %q", session, environment)
	return mask.New(mask.Config{
		Environ: environ, Operator: providers(o.Masking), Providers: providers(p.asked.Proxy.CredentialProviders),
		Scope: scope.Sum(nil), Log: n.Log,
	})
}

// providers returns the providers in the form of package mask.
func providers(asked map[string]protocol.CredentialProvider) map[string]mask.Provider {
	all := make(map[string]mask.Provider, len(asked))
	for name, c := range asked {
		all[name] = provider(c)
	}
	return all
}

// CheckProvider returns the reason why the provider of an operator is unusable, or nil.
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
