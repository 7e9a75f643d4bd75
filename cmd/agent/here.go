package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/agent/internal/target"
	"github.com/execagent/execagent/cmd/agent/internal/transfer"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/build"
)

// hereFlags name the agent of a command that can also look at this machine.
type hereFlags struct {
	agentFlags
	Local bool `help:"Look at this machine, whatever the current context is."`
}

// Check is as for agentFlags.
func (f *hereFlags) Check() error { return f.checkHere(f.Local, "looks at this machine") }

// checkHere finds flags that contradict each other, of a command that works here if no agent is named, or with --local.
func (f *agentFlags) checkHere(local bool, does string) error {
	if local && (f.URL != "" || f.Registry != "" || f.Context != nil) {
		return errors.New("--local cannot be used with --context, --url or --registry")
	}
	if local {
		f.Context = new("")
	}
	if err := f.Flags.Check(); err != nil {
		return err
	}
	if !f.Elsewhere() && f.Context == nil && len(f.Contexts()) > 0 {
		return fmt.Errorf("%w; --local %s", f.Nowhere(), does)
	}
	return nil
}

// on is on of agentFlags, or does the same with an agent that is embedded in this process.
func (f *hereFlags) on(sys program.System, failure int, do func(context.Context, *client.Client) (int, error)) int {
	if f.Elsewhere() {
		return f.agentFlags.on(sys, failure, do)
	}
	m := &embedded{ended: make(chan struct{}), agent: agent.New(agent.Config{
		Version: build.ExecutorVersion(), Environ: sys.Environ, Logger: f.Logger(sys),
	})}
	code := 0
	ended, err := untilSignal(f.Timeout, func(ctx context.Context) error {
		c, err := client.Connect(ctx, client.Config{Dial: m.dial, Single: true, ClientName: target.ClientName})
		if err != nil {
			return err
		}
		defer m.close()
		defer c.Close()
		code, err = do(ctx, c)
		return err
	})
	return finished(sys, code, ended, err, failure)
}

// onPaths calls do with the files of the agent, and with paths, or with the working directory for none.
func (f *hereFlags) onPaths(sys program.System, failure int, paths []string, do func(context.Context, *transfer.Files, []string) (int, error)) int {
	return f.on(sys, failure, func(ctx context.Context, c *client.Client) (int, error) {
		dir, err := workingDir(ctx, c)
		if err != nil {
			return 0, err
		}
		if len(paths) == 0 {
			paths = []string{""}
		}
		return do(ctx, &transfer.Files{Client: c, Dir: dir}, paths)
	})
}
