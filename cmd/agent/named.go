package main

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/agent/console"
	"github.com/execagent/execagent/cmd/agent/sessions"
	"github.com/execagent/execagent/cmd/agent/target"
	"github.com/execagent/execagent/cmd/internal/program"
)

// errNowhere says that no agent is named, for commands that embed none.
var errNowhere = errors.New("which agent? --context, --url or --registry says it")

// agentFlags name the agent of a command that asks it something.
type agentFlags struct{ target.Flags }

// validate finds flags that contradict each other.
func (f *agentFlags) validate() error {
	if !f.Elsewhere() {
		return errNowhere
	}
	return f.Flags.Validate()
}

// validNames refuses what is no name of a session.
func validNames(names ...string) error {
	if len(names) == 0 || names[0] == "" {
		return errors.New("which session? agent ps lists them")
	}
	for _, name := range names {
		if err := sessions.CheckName(name); err != nil {
			return err
		}
	}
	return nil
}

// on connects to the agent, and calls do until a signal or --timeout ends its context. If the
// connection is lost for long, the user hears of it. The result is the exit code; after an error
// it is failure.
func (f *agentFlags) on(sys program.System, failure int, do func(context.Context, *client.Client) (int, error)) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	program.Catch(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		select {
		case received := <-signals:
			cancel(console.SignalError{Signal: received.(syscall.Signal)})
		case <-ctx.Done():
		}
	}()
	if f.Timeout > 0 {
		defer time.AfterFunc(f.Timeout, func() { cancel(timeoutError(f.Timeout)) }).Stop()
	}
	code, err := f.ask(ctx, sys, do)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if errors.Is(err, syscall.EPIPE) {
		err = console.SignalError{Signal: syscall.SIGPIPE} // of which a program dies that does not look
	}
	if err != nil {
		return failed(sys, err, failure)
	}
	return code
}

func (f *agentFlags) ask(ctx context.Context, sys program.System, do func(context.Context, *client.Client) (int, error)) (int, error) {
	c, err := f.Connect(ctx, sys)
	if err != nil {
		return 0, err
	}
	var watching sync.WaitGroup
	defer watching.Wait()
	defer c.Close()
	watching.Go(func() {
		console.WatchLoss(ctx, c, func(lost bool) {
			if lost {
				program.Complain(sys.Stderr, console.LostText)
			}
		})
	})
	return do(ctx, c)
}
