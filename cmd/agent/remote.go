package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"

	"golang.org/x/sync/errgroup"

	"github.com/execagent/execagent/agent/metrics"
	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/cmd/agent/executor"
	"github.com/execagent/execagent/cmd/agent/probes"
	"github.com/execagent/execagent/cmd/agent/target"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/relay"
	"github.com/execagent/execagent/relay/noise"
	"github.com/execagent/execagent/rpc"
)

// errStdinClosed ends an executor whose standard input has ended. It is no failure:
// the exit code is 0.
var errStdinClosed = errors.New("standard input has ended")

// remote connects an executor to a registry and keeps it connected. The executor is
// an agent or a forwarder.
type remote struct {
	flags   *executor.Flags
	signIn  *executor.SignIn
	stdin   *os.File
	logger  *slog.Logger
	budget  *rpc.Budget // for the messages of all streams; nil: no bound
	reserve int64       // see relay.LinkConfig.ReserveBytes
	metrics *metrics.Set

	holders func() []string     // see relay.LinkConfig.Holders
	revoked func(holder string) // and relay.LinkConfig.Revoked
}

// exitOnStdinClose is the reference's variable for --exit-on-stdin-close.
const exitOnStdinClose = "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE"

// newRemote checks everything that can be checked without waiting for standard
// input or for the network. listening are the flags of a server that listens: here
// they are refused if they are given.
func newRemote(sys program.System, flags *executor.Flags, listening *authFlags, logger *slog.Logger) (*remote, error) {
	if err := listening.refuse(); err != nil {
		return nil, err
	}
	if err := flags.Configuration(); err != nil {
		return nil, err
	}
	if _, err := auth.CheckBase(*flags.Remote, nil); err != nil {
		return nil, fmt.Errorf("--remote %w: want https://HOST, or http:// for this machine", err)
	}
	s, err := executor.NewSignIn(sys, flags, logger)
	if err != nil {
		return nil, err
	}
	return &remote{flags: flags, signIn: s, stdin: sys.Stdin, logger: logger}, nil
}

// run signs in, registers and has serve accept streams from the link, until
// everything has ended. Probes hear that it is ready while the link is up. run returns nil when
// ctx ends, or standard input where the flags say so. It returns an error when the
// registry refuses the executor or its credentials are no longer valid.
func (r *remote) run(ctx context.Context, p *probes.Server, serve func(context.Context, rpc.Listener) error) error {
	err := r.work(ctx, p, serve)
	if ctx.Err() != nil || errors.Is(err, errStdinClosed) {
		return nil
	}
	return target.Untrusted(err, "--tls-ca, AGENT_TLS_CA or SSL_CERT_FILE names the file with its authority")
}

// work is run without the judgement which ends are in order.
func (r *remote) work(ctx context.Context, p *probes.Server, serve func(context.Context, rpc.Listener) error) error {
	source, err := r.signIn.Source(ctx, r.stdin, r.flags)
	if err != nil {
		return err
	}
	if rotating, ok := source.(*auth.Credentials); ok {
		defer rotating.Close()
	}
	registry, err := relay.NewRegistry(relay.RegistryConfig{
		BaseURL:       *r.flags.Remote,
		EnvironmentID: r.flags.ID(),
		Tokens:        source,
		Logger:        r.logger,
		RootCAs:       r.signIn.Registry,
		Proxy:         http.ProxyFromEnvironment,
	})
	if err != nil {
		return err
	}
	defer registry.Close()
	identity, err := noise.NewIdentity()
	if err != nil {
		return err
	}
	link := relay.NewLink(relay.LinkConfig{
		Registry: registry, Identity: identity, Logger: r.logger, Budget: r.budget, ReserveBytes: r.reserve, Holders: r.holders, Revoked: r.revoked,
	})
	measureLink(r.metrics, link)
	p.Follow(link.Unready)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return serve(ctx, link) })
	group.Go(func() error { return link.Run(ctx) })
	group.Go(func() error { return r.watchInput(ctx, source) })
	return group.Wait()
}

// watchInput waits for the end of standard input, if that ends the executor, or
// for the end of ctx. With rotating credentials the input always ends it, as in
// the reference: no newer credentials can come any more. Otherwise it takes
// --exit-on-stdin-close.
func (r *remote) watchInput(ctx context.Context, source auth.TokenSource) error {
	var ended <-chan struct{}
	rotating, ok := source.(*auth.Credentials)
	switch {
	case ok:
		ended = rotating.Done()
	case r.flags.ExitOnStdinClose:
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

// endOf reads the input away, so nobody else may read it, and closes the channel at
// its end. The goroutine may last until the program ends: a read of a terminal
// cannot be interrupted.
func endOf(input io.Reader) <-chan struct{} {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		// If reading fails, there is no more input either.
		_, _ = io.Copy(io.Discard, input)
	}()
	return closed
}
