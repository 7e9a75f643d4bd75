package target

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/conns"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/relay"
)

// chosen is the context that names the agent.
type chosen struct {
	file    *ContextFile
	context *Context // nil: none
	err     error    // says why the context cannot be found
	known   string   // the token, once it has been read
}

// Again returns flags that name the same agent in another process, which reads the context again for its token.
func (f *Flags) Again() Flags {
	again := *f
	again.chosen = nil
	if c := f.choose().context; c != nil {
		again.URL, again.Registry, again.Context = "", "", &c.Name
	}
	return again
}

// maxNamed bounds the contexts that an error names.
const maxNamed = 10

// Contexts returns the names of all contexts, nil if they cannot be read.
func (f *Flags) Contexts() []string {
	path, err := LocateContexts(f.Config)
	if err != nil {
		return nil
	}
	file, err := ReadContexts(path)
	if err != nil {
		return nil
	}
	return file.Names()
}

// Nowhere returns the error of a command that needs an agent but names none.
func (f *Flags) Nowhere() error {
	names := f.Contexts()
	if len(names) == 0 {
		return errors.New("which agent? name it with --context, --url or --registry")
	}
	if len(names) > maxNamed {
		names = append(names[:maxNamed], "...")
	}
	return fmt.Errorf("which agent? name it with --context, --url or --registry; the contexts are %s", strings.Join(names, ", "))
}

// choose finds the context, and fills in the flags from it. It does so once, because a command must
// not change its agent while it runs.
func (f *Flags) choose() *chosen {
	if f.chosen != nil {
		return f.chosen
	}
	c := new(chosen)
	f.chosen = c
	if f.URL != "" || f.Registry != "" || f.Context != nil && *f.Context == "" {
		return c
	}
	path, err := LocateContexts(f.Config)
	if err != nil {
		if f.Context != nil {
			c.err = err
		}
		return c // no context was requested
	}
	if c.file, c.err = ReadContexts(path); c.err != nil {
		return c
	}
	name := c.file.Current
	if f.Context != nil {
		name = *f.Context
	}
	if name == "" {
		return c
	}
	if c.context, c.err = c.file.Find(name); c.err != nil {
		return c
	}
	f.URL, f.Registry = c.context.URL, c.context.Registry
	var own TLSFlags
	if own, c.err = c.tls(); c.err != nil {
		return c
	}
	f.or(own)
	if f.Registry != "" && f.EnvironmentID == nil && c.context.EnvironmentID != "" {
		f.EnvironmentID = &c.context.EnvironmentID
	}
	f.Transport = cmp.Or(f.Transport, c.context.Transport)
	return c
}

// tls returns the flags about TLS that the context sets.
func (c *chosen) tls() (f TLSFlags, err error) {
	f.TLSServerName = c.context.TLSServerName
	for _, file := range []struct {
		named string
		at    *string
	}{{c.context.TLSCA, &f.TLSCA}, {c.context.TLSCert, &f.TLSCert}, {c.context.TLSKey, &f.TLSKey}} {
		if file.named != "" && err == nil {
			*file.at, err = c.file.Resolve(file.named)
		}
	}
	return f, err
}

// once returns the token of the context, or "" if it has none. It runs a token command only once.
func (c *chosen) once(ctx context.Context, sys program.System) (string, error) {
	if c.known != "" {
		return c.known, nil
	}
	return c.token(ctx, sys)
}

// token reads the token of the context again.
func (c *chosen) token(ctx context.Context, sys program.System) (token string, err error) {
	if c.context == nil {
		return "", nil
	}
	c.known, err = c.file.Token(ctx, sys, c.context)
	return c.known, err
}

// renews reports whether token may return another token each time.
func (c *chosen) renews() bool { return c.context != nil && len(c.context.TokenCommand) > 0 }

// ErrNoRegistry says that nothing names the registry whose environments to list.
var ErrNoRegistry = errors.New("which registry? name it with --registry or --context")

// Environments asks the registry of the flags, or of the context, which environments its token may
// use.
func (f *Flags) Environments(ctx context.Context, sys program.System) ([]wire.Environment, error) {
	switch c := f.choose(); {
	case c.err != nil:
		return nil, c.err
	case f.Registry == "" && c.context != nil:
		return nil, fmt.Errorf("context %s names an agent, not a registry", c.context.Name)
	case f.Registry == "":
		return nil, ErrNoRegistry
	}
	token, err := f.registryToken(ctx, sys)
	if err != nil {
		return nil, err
	}
	return ListEnvironments(ctx, sys, f.Registry, f.TLSCA, token)
}

// ListEnvironments asks a registry which environments a token may use. authorities is the file of
// --tls-ca, or "".
func ListEnvironments(ctx context.Context, sys program.System, registry, authorities, token string) ([]wire.Environment, error) {
	roots, err := rootsFor(sys, registry, authorities)
	if err != nil {
		return nil, err
	}
	environments, err := relay.Environments(ctx, relay.RegistryConfig{
		BaseURL: registry, Tokens: auth.Bearer(token), RootCAs: roots, Proxy: conns.ProxyOf,
	})
	return environments, Untrusted(err, registryRemedy)
}

// rootsFor returns the trusted roots for a registry: those in a file, or without one those of the
// host and of the files that variables name.
func rootsFor(sys program.System, registry, authorities string) (*x509.CertPool, error) {
	if authorities != "" {
		return Authorities(authorities)
	}
	lookup := func(name string) string {
		value, _ := sys.Lookup(name)
		return value
	}
	return Roots(registry, lookup("SSL_CERT_FILE"), lookup("CODEX_CA_CERTIFICATE"))
}
