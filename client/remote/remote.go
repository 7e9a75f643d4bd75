// Package remote reaches an executor that has registered with an environment
// registry: a client of package client whose connections go through a rendezvous,
// end to end encrypted. It is a package of its own so that a program that only dials
// WebSockets links neither Noise nor the relay.
//
//	c, err := remote.Dial(ctx, "https://registry.example", "build-1", key)
//
// The executor of that environment is an agent that was started as
//
//	agent --remote https://registry.example --environment-id build-1
//
// Dial asks the registry for the executor and its key, and shakes hands with exactly
// that key. Only the registry ties the key to the environment. A lost websocket is
// replaced without the client noticing (remote.md 8.1); if that takes too long, the
// client recovers its session over a new stream. The new stream goes to the same key,
// whatever the registry says by then: if another executor has taken the place, such as
// the same agent after a restart, the client fails at once, because what ran is gone.
// Dial then connects a new client to the new executor.
package remote

import (
	"context"
	"crypto/x509"
	"log/slog"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/internal/conns"
	"github.com/execagent/execagent/internal/relay/direct"
	"github.com/execagent/execagent/relay"
)

// Option is an option of a connection through a registry.
type Option func(*options)

type options struct {
	config   client.Config
	registry relay.RegistryConfig
	failed   func(error) (enough bool)
	direct   bool
}

// Settings copies the name, the timeouts and the session to resume from a client.Config.
func Settings(cfg client.Config) Option { return func(o *options) { o.config = cfg } }

// Roots replaces the system's root certificates for verifying an https registry.
func Roots(roots *x509.CertPool) Option { return func(o *options) { o.registry.RootCAs = roots } }

// Logger logs losses and reconnects, but never a key or a signed URL.
func Logger(log *slog.Logger) Option { return func(o *options) { o.registry.Logger = log } }

// Failed calls f after each failed attempt to connect that would be repeated. If f returns
// true, the attempts end, and the client gets the error.
func Failed(f func(error) (enough bool)) Option { return func(o *options) { o.failed = f } }

// Direct asks for the direct transport. It has no encryption from end to end, so the operator of
// the registry, or of a proxy that ends TLS, can read and change everything. The registry and the
// executor must ask for it too. Without Direct, the client never uses it; with Direct, it never
// uses the encrypted one.
func Direct() Option { return func(o *options) { o.direct = true } }

// Dial connects to the executor of an environment: it is client.Connect of [Registry].
func Dial(ctx context.Context, url, environmentID, key string, settings ...Option) (*client.Client, error) {
	cfg, err := Registry(url, environmentID, key, settings...)
	if err != nil {
		return nil, err
	}
	return client.Connect(ctx, cfg)
}

// Registry returns the Config for the executor of an environment. The URL is https, or
// http to a loopback host; key is a key for harnesses. Proxies come from the
// environment of the process. Nothing is sent before the client connects. Connect only
// one client with the result; closing that client frees it.
func Registry(url, environmentID, key string, settings ...Option) (client.Config, error) {
	o := options{registry: relay.RegistryConfig{
		BaseURL:       url,
		EnvironmentID: environmentID,
		Tokens:        auth.Bearer(key),
		Proxy:         conns.ProxyOf,
	}}
	for _, option := range settings {
		option(&o)
	}
	registry, err := relay.NewRegistry(o.registry)
	if err != nil {
		return client.Config{}, err
	}
	cfg := o.config
	cfg.Release = registry.Close
	if o.direct {
		dialer := &direct.Dialer{Registry: registry, Logger: o.registry.Logger, Failed: o.failed}
		cfg.Dial, cfg.Final, cfg.Same = dialer.Dial, direct.Final, dialer.Same
		return cfg, nil
	}
	identity, err := relay.NewIdentity()
	if err != nil {
		registry.Close()
		return client.Config{}, err
	}
	dialer := &relay.Dialer{Registry: registry, Identity: identity, Logger: o.registry.Logger, Failed: o.failed}
	cfg.Dial, cfg.Final, cfg.Same = dialer.Dial, relay.Final, dialer.Same
	return cfg, nil
}
