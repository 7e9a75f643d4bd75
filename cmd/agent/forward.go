package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"os"
	"sync"

	"github.com/execagent/execagent/cmd/agent/program"
	"github.com/execagent/execagent/internal/tlsconfig"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/transport"
)

// forwardFlags say to which exec-server connections are forwarded, and at which
// registry it is offered (remote.md 11).
type forwardFlags struct {
	Connect string `required:"" env:"AGENT_CONNECT" placeholder:"URL" help:"The exec-server: ws://HOST:PORT, or wss."`
	healthFlags
	remoteFlags
	authFlags // only so that newRemote can say why it refuses them; hidden in the help
	logFlags
}

func (*forwardFlags) Help() string {
	return `Registers like agent --remote, but passes each connection on to an exec-server that listens on a WebSocket, one connection there for each. Messages are passed through as they are.

Example:

    CODEX_API_KEY=... agent forward --connect ws://127.0.0.1:7000 --remote https://registry.example.com --environment-id build-1

Exit codes: 0 after an orderly end, 1 when it cannot serve, 2 for a wrong command line.`
}

// Validate finds flags that contradict each other. The parser calls it.
func (f *forwardFlags) Validate() error {
	if f.Remote == nil {
		return errors.New("forward needs --remote")
	}
	return f.remoteFlags.usage()
}

// runForward forwards until a signal.
func runForward(sys program.System, flags *forwardFlags) int {
	return untilSignal(sys, func(signals <-chan os.Signal) (os.Signal, error) {
		return forward(sys, flags, signals)
	})
}

// forward offers the exec-server at the registry and passes messages on until a
// signal, which it returns, or an error.
func forward(sys program.System, flags *forwardFlags, signals <-chan os.Signal) (received os.Signal, err error) {
	logger := flags.logger(sys.Stderr)
	r, err := newRemote(sys, &flags.remoteFlags, &flags.authFlags, logger)
	if err != nil {
		return nil, err
	}
	warnOfExposed(logger, r.signIn.secrets(r.flags))
	target, err := url.Parse(flags.Connect)
	if err != nil || target.Scheme != "ws" && target.Scheme != "wss" || target.Host == "" {
		return nil, errors.New("--connect is not of the form ws://HOST:PORT or wss://HOST:PORT")
	}
	probes, err := listenHealth(flags.HealthListen, logger)
	if err != nil {
		return nil, err
	}
	defer probes.Close()

	plan := planMemory()
	r.budget, r.reserve = rpc.NewBudget(plan.messages), plan.streams
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	f := &forwarder{target: flags.Connect, roots: r.signIn.roots, logger: logger}
	done := make(chan error, 1)
	go func() { done <- r.run(ctx, probes, f.serve) }()
	select {
	case err = <-done:
		return nil, err
	case received = <-signals:
		cancel()
		return received, <-done
	}
}

// maxForwards bounds the connections to the exec-server, including those that are
// still being opened. Without a bound a harness could make any number of them
// while the exec-server does not answer: it would open a stream, give it up and
// open the next one, and each would leave a connection attempt behind.
const maxForwards = 128

// forwarder passes connections on to an exec-server.
type forwarder struct {
	target string
	roots  *x509.CertPool
	logger *slog.Logger
}

// serve forwards each stream that the listener yields, until ctx ends or the
// listener is closed. It returns when all streams have ended.
func (f *forwarder) serve(ctx context.Context, l rpc.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	var streams sync.WaitGroup
	defer streams.Wait()
	defer cancel()
	seats := make(chan struct{}, maxForwards)
	for {
		select {
		case seats <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		stream, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		streams.Go(func() {
			defer func() { <-seats }()
			f.forward(ctx, stream)
		})
	}
}

// forward dials the target and passes messages both ways until one side ends;
// then the other one ends too.
func (f *forwarder) forward(ctx context.Context, stream rpc.Conn) {
	defer stream.Close()
	var secure *tls.Config // nil: Dial verifies against the roots of the system
	if f.roots != nil {
		secure = tlsconfig.Client(f.roots)
	}
	target, err := transport.Dial(ctx, f.target, transport.DialConfig{TLS: secure})
	if err != nil {
		f.logger.Warn("the exec-server cannot be reached", "error", err)
		return
	}
	both := func() {
		_ = target.Close()
		_ = stream.Close()
	}
	stop := context.AfterFunc(ctx, both)
	defer stop()
	var answers sync.WaitGroup
	answers.Go(func() {
		pump(stream, target)
		both()
	})
	pump(target, stream)
	both()
	answers.Wait()
}

// pump passes messages on, in one direction, until reading or writing fails.
func pump(to, from rpc.Conn) {
	for {
		message, err := from.Read()
		if err != nil {
			return
		}
		err = to.Write(message)
		rpc.IntakeOf(from).Recycle(message)
		if err != nil {
			return
		}
	}
}
