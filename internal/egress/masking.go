package egress

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/netproxy/intercept"
	"github.com/execagent/execagent/internal/netproxy/mask"
	"github.com/execagent/execagent/internal/netproxy/rules"
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
// roots, in a folder of its own.
type trust struct {
	mu        sync.Mutex // guards what follows
	authority *intercept.Authority
	path      string        // of the folder; "": it was never made
	failed    error         // it cannot be made
	dir       *os.Root      // the folder; nil: it was never made, or was taken away
	lock      *os.File      // the folder too: while it is locked, no agent removes it
	stop      chan struct{} // ends the sweep; nil: none was begun

	sweeping sync.WaitGroup
}

// trustFile is the name of the file.
const trustFile = "trusted.crt"

// get returns the authority and the path of the file, which it makes at the first call. Processes that
// no sandbox confines could have replaced the file or its folder: then get restores them. It
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
	want := t.authority.Bundle()
	for try := 1; ; try++ {
		if err := t.makeFolderLocked(); err != nil {
			return nil, "", err
		}
		path := filepath.Join(t.path, trustFile)
		if t.has(want) {
			return t.authority, path, nil
		}
		// Until the folder has the file, another agent that had locked the one before can remove it.
		if err := t.write(want); err == nil || t.inPlace() || try == maxTrustTries {
			return t.authority, path, err
		}
	}
}

// folder returns the path of the folder, which it makes at the first call; "" if it cannot.
func (t *trust) folder() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.path == "" {
		_ = t.makeFolderLocked() // get returns the error
	}
	return t.path
}

// makeFolderLocked makes sure that there is a folder. It always has the path that it had first, because
// commands that run may be kept from writing to that path and to no other. So there is no second try
// if the first one fails.
func (t *trust) makeFolderLocked() (err error) {
	if t.dir != nil && t.inPlace() {
		return nil
	}
	_ = t.leaveLocked()
	if t.path == "" && t.failed == nil {
		if t.path, t.failed = newTrustFolder(); t.failed == nil {
			t.sweepLocked()
		}
	}
	if err = t.failed; err == nil {
		err = t.openLocked()
	}
	// Another agent can be faster, and take a new folder for that of a killed agent.
	for try := 0; err != nil && t.failed == nil && try < maxTrustTries; try++ {
		_ = os.Remove(t.path) // a link, or an empty folder; Mkdir fails if there is still something
		if err = os.Mkdir(t.path, 0o700); err == nil {
			err = t.openLocked()
		}
	}
	if err != nil {
		return fmt.Errorf("a place for the certificate of the proxies: %w", err)
	}
	return nil
}

// openLocked locks the folder, and opens it. If it fails, it leaves nothing open.
func (t *trust) openLocked() (err error) {
	if t.lock, err = lockFolder(t.path); err != nil {
		return err
	}
	if t.dir, err = os.OpenRoot(t.path); err == nil {
		err = t.dir.Chmod(".", 0o755)
	}
	if err != nil {
		_ = t.leaveLocked() // the first error counts
	}
	return err
}

// leaveLocked closes the folder.
func (t *trust) leaveLocked() (err error) {
	if t.dir != nil {
		err = t.dir.Close()
	}
	if t.lock != nil {
		err = errors.Join(err, t.lock.Close())
	}
	t.dir, t.lock = nil, nil
	return err
}

// inPlace reports whether the folder is still where it was made.
func (t *trust) inPlace() bool {
	made, err := t.dir.Stat(".")
	if err != nil {
		return false
	}
	there, err := os.Lstat(t.path)
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
	if err = errors.Join(err, f.Close()); err == nil {
		err = t.dir.Rename(next, trustFile)
	}
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EEXIST) {
		// A folder is in the way. To remove all that it holds can take long.
		if err = t.dir.Rename(trustFile, trustFile+"."+rand.Text()); err == nil {
			err = t.dir.Rename(next, trustFile)
		}
	}
	if err != nil {
		_ = t.dir.Remove(next) // the first error counts
	}
	return err
}

// close removes the folder. If commands have put other things there, it stays.
func (t *trust) close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stop != nil {
		close(t.stop)
		t.stop = nil
	}
	t.sweeping.Wait()
	if t.dir != nil {
		empty(t.lock)
		_ = os.Remove(t.path) // it fails if the folder is not empty
	}
	return t.leaveLocked()
}

const (
	trustPrefix   = "execagent-trust-" // of the names of such folders
	maxTrustTries = 10
	// maxTrustNames is more than an agent writes into its folder. Whoever writes more there, keeps it.
	maxTrustNames = 8
)

// newTrustFolder makes the folder, where commands write seldom if there is such a place, and returns
// its path, which has no links. The links of the parent are resolved first, because another agent can
// take the new folder for that of a killed agent, and remove it at once.
func newTrustFolder() (path string, err error) {
	for _, parent := range []string{os.Getenv("XDG_RUNTIME_DIR"), "/run", os.TempDir()} {
		if !filepath.IsAbs(parent) {
			continue
		}
		if parent, err = filepath.EvalSymlinks(parent); err != nil {
			continue
		}
		if path, err = os.MkdirTemp(parent, trustPrefix); err == nil {
			return path, nil
		}
	}
	return "", err
}

// sweepLocked begins to remove the folders of killed agents of this user beside the new one. Nobody waits for
// that but close, because commands could have made such folders, and there may be many names.
func (t *trust) sweepLocked() {
	stop := make(chan struct{})
	parent, own := filepath.Split(t.path)
	t.stop = stop
	t.sweeping.Go(func() {
		dir, err := os.Open(parent)
		if err != nil {
			return // what is left does no harm
		}
		defer dir.Close()
		for {
			names, err := dir.Readdirnames(256)
			for _, name := range names {
				select {
				case <-stop:
					return
				default:
				}
				if name == own || !strings.HasPrefix(name, trustPrefix) {
					continue
				}
				if lock, err := lockFolder(parent + name); err == nil {
					empty(lock)
					_ = os.Remove(parent + name) // it fails if the folder is not empty
					_ = lock.Close()
				}
			}
			if err != nil {
				return
			}
		}
	})
}

// empty removes from a folder the file, and what was to become the file. If there is more, it stays.
func empty(folder *os.File) {
	names, _ := folder.Readdirnames(maxTrustNames)
	for _, name := range names {
		if strings.HasPrefix(name, trustFile) {
			_ = unix.Unlinkat(int(folder.Fd()), name, 0)
		}
	}
}

// lockFolder locks a folder of this user, and fails at once if another agent has locked it.
func lockFolder(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(int(f.Fd()), &st); err == nil && int(st.Uid) != os.Geteuid() {
		err = os.ErrPermission
	}
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil {
		if err = unix.Fstat(int(f.Fd()), &st); err == nil && st.Nlink == 0 {
			err = os.ErrNotExist
		}
	}
	if err != nil {
		return nil, errors.Join(&os.PathError{Op: "lock", Path: path, Err: err}, f.Close())
	}
	return f, nil
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

// looks reports whether the proxy of a process has to look into tunnels, for credentials or request rules.
func (p *Plan) looks(o *Operator) bool {
	return p.masks(o) || p.policy.HasRequestRules() || o.Ceiling.HasRequestRules()
}

// Hide returns the environment of a process without a proxy, without the credentials that the
// operator hides from all processes.
func (n *Networks) Hide(environ []string) []string {
	if hidden := n.said().hidden; hidden != nil {
		return hidden.Environ(environ)
	}
	return environ
}

// HiddenNames returns a function that reports whether a variable of an environment is one that an operator
// hides, or contains the value of one.
func HiddenNames(masking map[string]protocol.CredentialProvider, environ []string) func(name string) bool {
	hidden := map[string]bool{}
	mark := func(entries []string, hides bool) {
		for _, entry := range entries {
			name, _, _ := strings.Cut(entry, "=")
			hidden[name] = hides
		}
	}
	mark(environ, true)
	mark(mask.NewHidden(providers(masking), environ).Environ(environ), false)
	return func(name string) bool { return hidden[name] }
}

// Allows reports whether the agent may send a variable of its environment to a URL when a client asks
// for that. It may not send a credential that the operator hides, except to where it belongs.
func (n *Networks) Allows(name string, to *url.URL) bool {
	hidden := n.said().hidden
	if hidden == nil {
		return true
	}
	d := mask.Destination{TLS: to.Scheme == "https", Path: to.EscapedPath(), Port: 80}
	if d.TLS {
		d.Port = 443
	}
	var err error
	if port := to.Port(); port != "" {
		var n uint64
		n, err = strconv.ParseUint(port, 10, 16)
		d.Port = uint16(n)
	}
	if host, failed := rules.Host(to.Hostname()); err == nil && failed == nil {
		d.Host = host // else it is "", which is no destination
	}
	return hidden.Allows(name, d)
}

// Bundle returns the path of a file that the process must be able to read; "" for none.
func (n *Networks) Bundle(p *Plan) (path string, err error) {
	if !p.looks(n.said()) {
		return "", nil
	}
	_, path, err = n.trust.get()
	return path, err
}

// Folder returns the folder with the file that all processes with masked credentials trust; "" if
// there is none. No confined process may be able to write there. The folder has the same path as
// long as the Networks is in use, and is made at the first call, if not before.
func (n *Networks) Folder() string { return n.trust.folder() }

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
		Environ: environ, Host: n.Environ, Operator: providers(o.Masking), Providers: providers(p.asked.Proxy.CredentialProviders),
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
