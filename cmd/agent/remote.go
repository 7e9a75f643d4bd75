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

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/relay"
	"github.com/execagent/execagent/relay/noise"
	"github.com/execagent/execagent/rpc"
)

// errStdinClosed ends an executor in order, with exit code 0.
var errStdinClosed = errors.New("standard input has ended")

// remote is the life of an executor behind a registry, be it an agent or a
// forwarder.
type remote struct {
	flags   *remoteFlags
	signIn  *signIn
	stdin   *os.File
	logger  *slog.Logger
	budget  *rpc.Budget // of the messages of all streams; nil: none
	reserve int64       // see relay.LinkConfig.ReserveBytes
}

// exitOnStdinClose is the reference's variable for the flag of the same words.
const exitOnStdinClose = "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE"

// newRemote checks what can be checked without waiting for anything.
func newRemote(sys system, flags *remoteFlags, listening *authFlags, logger *slog.Logger) (*remote, error) {
	if err := listening.refuse(); err != nil {
		return nil, err
	}
	if err := flags.configuration(); err != nil {
		return nil, err
	}
	if _, err := auth.CheckBase(*flags.Remote, nil); err != nil {
		return nil, fmt.Errorf("--remote %w", err)
	}
	s, err := newSignIn(sys, flags)
	if err != nil {
		return nil, err
	}
	return &remote{flags: flags, signIn: s, stdin: sys.stdin, logger: logger}, nil
}

// run signs in, registers and gives the link to serve; probes follow the link. It
// returns nil when ctx ends, or standard input where the flags make that the end. It
// returns an error when the registry refuses the executor, or its credentials are
// void.
func (r *remote) run(ctx context.Context, probes *health, serve func(context.Context, rpc.Listener) error) error {
	err := r.work(ctx, probes, serve)
	if ctx.Err() != nil || errors.Is(err, errStdinClosed) {
		return nil
	}
	return err
}

func (r *remote) work(ctx context.Context, probes *health, serve func(context.Context, rpc.Listener) error) error {
	source, err := r.signIn.source(ctx, r.stdin, r.flags)
	if err != nil {
		return err
	}
	if rotating, ok := source.(*auth.Credentials); ok {
		defer rotating.Close()
	}
	registry, err := relay.NewRegistry(relay.RegistryConfig{
		BaseURL:       *r.flags.Remote,
		EnvironmentID: r.flags.environmentID(),
		Tokens:        source,
		Logger:        r.logger,
		RootCAs:       r.signIn.roots,
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
		Registry: registry, Identity: identity, Logger: r.logger, Budget: r.budget, ReserveBytes: r.reserve,
	})
	probes.follow(link.Ready)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return serve(ctx, link) })
	group.Go(func() error { return link.Run(ctx) })
	group.Go(func() error { return r.watchInput(ctx, source) })
	return group.Wait()
}

// watchInput returns when standard input ends the executor. With rotating
// credentials its end always does, as in the reference: nobody is left who could
// renew them. Otherwise that takes --exit-on-stdin-close.
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

// endOf returns a channel that is closed at the end of the input, which nobody
// else reads. Its goroutine may outlive everything: a read of a terminal or of
// a file cannot be interrupted.
func endOf(input io.Reader) <-chan struct{} {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		// An error ends the input as well as its end does.
		_, _ = io.Copy(io.Discard, input)
	}()
	return closed
}
