package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/execagent/execagent/cmd/agent/internal/executor"
	"github.com/execagent/execagent/cmd/agent/internal/health"
	"github.com/execagent/execagent/cmd/agent/internal/target"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/tlsconfig"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/transport"
)

// forwardFlags name an exec-server, and the registry at which it is offered (remote.md 11).
type forwardFlags struct {
	Connect string `required:"" env:"AGENT_CONNECT" placeholder:"URL" help:"URL of the exec-server: ws://HOST:PORT, HOST:PORT, wss:// or unix:///PATH."`
	health.ListenFlags
	executor.Flags
	authFlags // only so that newRemote can refuse them; see refusedByForward
	logFlags
}

func (*forwardFlags) Help() string {
	return `Registers like agent --remote, but passes each connection on to an exec-server that listens on a WebSocket or a UNIX socket. Each connection gets a connection of its own there. Messages are passed on unchanged.

Example:

    CODEX_API_KEY=... agent forward --connect ws://127.0.0.1:7000 --remote https://registry.example.com --environment-id build-1

Exit codes: 0 after an orderly end, 1 when it cannot serve, 2 for a wrong command line.`
}

func (f *forwardFlags) Check() error {
	if f.Remote == nil {
		return errors.New("forward needs --remote")
	}
	return errors.Join(f.CheckHealth(), f.Flags.Usage())
}

// run forwards until a signal comes.
func (f *forwardFlags) run(sys program.System) int {
	return serveUntilSignal(f.loggingErrors(sys), 0, func(ctx context.Context) error { return forward(ctx, sys, f) })
}

// forward offers the exec-server at the registry and passes messages on until ctx ends.
func forward(ctx context.Context, sys program.System, flags *forwardFlags) error {
	if flags.Direct() {
		return errors.New("forward cannot use the direct transport, because it passes on only encrypted connections")
	}
	logger := flags.logger(sys.Stderr)
	r, err := newRemote(sys, &flags.Flags, &flags.authFlags, logger)
	if err != nil {
		return err
	}
	if err := checkSecrets(logger, r.SignIn.Secrets(r.Flags)); err != nil {
		return err
	}
	address := target.DialURL(flags.Connect)
	u, err := url.Parse(address)
	if !strings.HasPrefix(address, "unix:///") && (err != nil || u.Scheme != "ws" && u.Scheme != "wss" || u.Host == "") {
		return errors.New("--connect is not of the form ws://HOST:PORT, wss://HOST:PORT or unix:///PATH")
	}
	plan := planShares()
	r.Budget, r.Reserve = rpc.NewBudget(plan.messages), plan.streams
	r.Metrics = newMetrics(r.Budget)
	p, err := health.Listen(flags.HealthListen, nil, r.Metrics, logger)
	if err != nil {
		return err
	}
	defer p.Close()

	var secure *tls.Config // nil: Dial verifies against the roots of the system
	if r.SignIn.Roots != nil {
		secure = tlsconfig.Client(r.SignIn.Roots)
	}
	b := &bridge{logger: logger, dial: func(ctx context.Context) (rpc.Conn, error) {
		conn, err := transport.Dial(ctx, address, transport.DialConfig{TLS: secure})
		if err != nil {
			return nil, fmt.Errorf("the exec-server cannot be reached: %w", err) // not conn, because a nil conn makes an rpc.Conn that is not nil
		}
		return conn, nil
	}}
	return r.Run(ctx, p, b.serve)
}
