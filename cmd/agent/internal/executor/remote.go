package executor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"golang.org/x/sync/errgroup"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/cmd/agent/internal/health"
	"github.com/execagent/execagent/cmd/agent/internal/target"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/conns"
	"github.com/execagent/execagent/internal/relay/direct"
	"github.com/execagent/execagent/relay"
	"github.com/execagent/execagent/rpc"
)

// errStdinClosed ends an executor whose standard input has ended. This is not a failure, so the
// exit code is 0.
var errStdinClosed = errors.New("standard input has ended")

// Remote connects an executor to a registry and keeps it connected. The executor is
// an agent or a forwarder.
type Remote struct {
	Flags   *Flags
	SignIn  *SignIn
	Budget  *rpc.Budget // for the messages of all streams; nil: no bound
	Reserve int64       // see relay.LinkConfig.ReserveBytes
	Metrics *agent.Metrics

	Holders func() []string     // see relay.LinkConfig.Holders
	Revoked func(holder string) // and relay.LinkConfig.Revoked

	stdin  *os.File
	logger *slog.Logger
}

// NewRemote checks everything that can be checked without waiting for standard
// input or for the network.
func NewRemote(sys program.System, flags *Flags, logger *slog.Logger) (*Remote, error) {
	if err := flags.configuration(); err != nil {
		return nil, err
	}
	if _, err := auth.CheckBase(*flags.Remote, nil); err != nil {
		return nil, fmt.Errorf("--remote %w: want https://HOST, or http:// for this machine", err)
	}
	s, err := newSignIn(sys, flags, logger)
	if err != nil {
		return nil, err
	}
	return &Remote{Flags: flags, SignIn: s, stdin: sys.Stdin, logger: logger}, nil
}

// Run signs in, registers and calls serve, which accepts streams from the link. Run returns after
// all of these have ended. Probes are answered with ready while the link is up. Run returns nil
// when ctx ends, or when standard input ends and this ends the executor. It returns an error when
// the registry refuses the executor or its credentials are no longer valid.
func (r *Remote) Run(ctx context.Context, p *health.Server, serve func(context.Context, rpc.Listener) error) error {
	err := r.work(ctx, p, serve)
	if ctx.Err() != nil || errors.Is(err, errStdinClosed) {
		return nil
	}
	return target.Untrusted(err, "name the file of its certificate authority with --tls-ca, AGENT_TLS_CA or SSL_CERT_FILE")
}

// work does what Run does, but returns an error for every end.
func (r *Remote) work(ctx context.Context, p *health.Server, serve func(context.Context, rpc.Listener) error) error {
	source, err := r.SignIn.source(ctx, r.stdin, r.Flags)
	if err != nil {
		return err
	}
	if rotating, ok := source.(*auth.Credentials); ok {
		defer rotating.Close()
	}
	registry, err := relay.NewRegistry(relay.RegistryConfig{
		BaseURL:       *r.Flags.Remote,
		EnvironmentID: r.Flags.id(),
		Tokens:        source,
		Logger:        r.logger,
		RootCAs:       r.SignIn.Registry,
		Proxy:         conns.ProxyOf,
	})
	if err != nil {
		return err
	}
	defer registry.Close()
	identity, err := relay.NewIdentity()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.watchInput(ctx, source) })
	if r.Flags.Direct() {
		link := direct.NewLink(direct.LinkConfig{Registry: registry, Logger: r.logger, Budget: r.Budget, Patient: !r.Flags.AWSSigV4, Revoked: r.Revoked})
		measureDirect(r.Metrics, link)
		p.Follow(link.Unready)
		group.Go(func() error { return serve(ctx, link) })
		group.Go(func() error { return link.Run(ctx) })
		return group.Wait()
	}
	link := relay.NewLink(relay.LinkConfig{
		Registry: registry, Identity: identity, Logger: r.logger, Budget: r.Budget, ReserveBytes: r.Reserve, Holders: r.Holders, Revoked: r.Revoked,
	})
	measureLink(r.Metrics, link)
	p.Follow(link.Unready)
	group.Go(func() error { return serve(ctx, link) })
	group.Go(func() error { return link.Run(ctx) })
	return group.Wait()
}

// watchInput waits for the end of standard input, if that ends the executor, or for the end of ctx.
// With rotating credentials, the end of standard input always ends the executor, as in the
// reference, because no newer credentials can come. Otherwise only --exit-on-stdin-close has this
// effect.
func (r *Remote) watchInput(ctx context.Context, source auth.TokenSource) error {
	var ended <-chan struct{}
	rotating, ok := source.(*auth.Credentials)
	switch {
	case ok:
		ended = rotating.Done()
	case r.Flags.ExitOnStdinClose:
		ended = endOf(r.stdin)
	}
	select {
	case <-ctx.Done():
		return nil
	case <-ended:
	}
	if ok && rotating.Err() != nil {
		return rotating.Err()
	}
	return errStdinClosed
}

// endOf reads and drops the input, and closes the channel at its end. Nothing else may read the
// input. The goroutine may last until the program ends, because a read of a terminal cannot be
// interrupted.
func endOf(input io.Reader) <-chan struct{} {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		// If reading fails, there is no more input either.
		_, _ = io.Copy(io.Discard, input)
	}()
	return closed
}
