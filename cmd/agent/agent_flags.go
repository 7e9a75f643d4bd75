package main

import (
	"context"
	"errors"
	"sync"
	"syscall"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/agent/internal/console"
	"github.com/execagent/execagent/cmd/agent/internal/sessions"
	"github.com/execagent/execagent/cmd/agent/internal/target"
	"github.com/execagent/execagent/cmd/internal/program"
)

// agentFlags name the agent of a command that is a client.
type agentFlags struct{ target.Flags }

// Check finds flags that contradict each other. A command that embeds these flags and has its own
// Check calls this Check there, because its own Check hides this one from the parser.
func (f *agentFlags) Check() error {
	if !f.Elsewhere() {
		return f.Nowhere()
	}
	return f.Flags.Check()
}

// validNames refuses invalid names of sessions, and contradicting flags.
func (f *agentFlags) validNames(names ...string) error {
	if len(names) == 0 || names[0] == "" {
		return errors.New("which session? agent ps lists them")
	}
	for _, name := range names {
		if err := sessions.CheckName(name); err != nil {
			return err
		}
	}
	return f.Check()
}

// on connects to the agent and calls do. A signal or --timeout ends its context. If the connection
// is lost for long, on tells the user. The result is the exit code: the code that do returns,
// failure after an error, or the code of the signal or the timeout.
func (f *agentFlags) on(sys program.System, failure int, do func(context.Context, *client.Client) (int, error)) int {
	code := 0
	lost := func(lost bool) {
		if lost {
			program.Complain(sys.Stderr, console.LostText)
		}
	}
	ended, err := untilSignal(f.Timeout, func(ctx context.Context) error {
		return f.use(ctx, sys, lost, func(ctx context.Context, c *client.Client) (err error) {
			code, err = do(ctx, c)
			return err
		})
	})
	return finished(sys, code, ended, err, failure)
}

// finished returns the exit code of what untilSignal has done: code, failure after an error, or the code of the signal
// or the timeout.
func finished(sys program.System, code int, ended, err error, failure int) int {
	if ended != nil {
		err = ended
	}
	if errors.Is(err, syscall.EPIPE) {
		err = console.SignalError{Signal: syscall.SIGPIPE} // this signal kills a program that writes to a closed pipe
	}
	if err != nil {
		return failed(sys, err, failure)
	}
	return code
}

// serve does what on does, for a command that is itself a server, see [serveUntilSignal]. lost is
// called when the connection is lost for long, and when it is back. lost may be nil.
func (f *agentFlags) serve(sys program.System, lost func(bool), do func(context.Context, *client.Client) error) int {
	return serveUntilSignal(sys, f.Timeout, func(ctx context.Context) error {
		return unlessEnded(ctx, f.use(ctx, sys, lost, do))
	})
}

// use calls do with a client of the agent. lost is as for serve.
func (f *agentFlags) use(ctx context.Context, sys program.System, lost func(bool), do func(context.Context, *client.Client) error) error {
	c, err := f.Connect(ctx, sys)
	if err != nil {
		return err
	}
	var watching sync.WaitGroup
	defer watching.Wait()
	defer c.Close()
	if lost != nil {
		watching.Go(func() { console.WatchLoss(ctx, c, lost) })
	}
	return do(ctx, c)
}
