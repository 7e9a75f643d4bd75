package main

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"syscall"
	"time"

	"github.com/execagent/execagent/cmd/agent/internal/health"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/protocol"
)

// healthPatience bounds how long agent health takes, unless --timeout is given.
const healthPatience = 10 * time.Second

// healthFlags name the agent to ask.
type healthFlags struct {
	agentFlags
	Probe string `env:"AGENT_PROBE" placeholder:"ADDRESS" help:"Ask whether clients can connect at an address where the agent answers probes (its --health-listen, or --listen without TLS), instead of connecting as a client: HOST:PORT or unix:///PATH."`
}

func (*healthFlags) Help() string {
	return `Connects like a client and asks for the agent's status, so it needs a client's credential: --token-file, or a key for --registry. It prints nothing if the agent serves. Without --wait it tries once. It takes at most 10 s, or --timeout.

The key that an agent has in remote mode is not a client's key. To check an agent without any credential, ask with --probe: the address at which it listens without TLS, or that of its --health-listen.

Examples:

    agent health --url 127.0.0.1:7000
    agent health --probe unix:///run/agent/health.sock
    HEALTHCHECK CMD ["agent", "health", "--probe", "127.0.0.1:7000"]

Exit codes: 0 when the agent serves, 1 when it does not, 2 for a wrong command line.`
}

func (f *healthFlags) Check() error {
	if f.Probe == "" {
		return f.agentFlags.Check()
	}
	if f.URL != "" || f.Registry != "" || f.Context != nil {
		return errors.New("--probe cannot be used with --url, --registry or --context")
	}
	return health.Check("--probe", f.Probe)
}

// run asks an agent whether it serves. The result is the exit code.
func (f *healthFlags) run(sys program.System) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	limit := healthPatience
	if f.Timeout > 0 {
		limit = f.Timeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, timeoutError(limit))
	defer cancel()
	if err := ask(ctx, sys, f); err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		return sys.Fail(err)
	}
	return program.ExitOK
}

func ask(ctx context.Context, sys program.System, flags *healthFlags) error {
	if flags.Wait == nil {
		flags.Wait = new(time.Duration) // a prober repeats its probes anyway
	}
	if flags.Probe != "" {
		return flags.Repeat(ctx, func() error { return health.Ask(ctx, flags.Probe) })
	}
	c, err := flags.Connect(ctx, sys)
	if err != nil {
		return err
	}
	defer c.Close()
	status, err := c.Status(ctx)
	if err != nil {
		return err
	}
	if status != protocol.StatusReady {
		return fmt.Errorf("the agent is %s", status)
	}
	return nil
}
