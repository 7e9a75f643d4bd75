package main

import (
	"context"
	"sync"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/agent/internal/sessions"
	"github.com/execagent/execagent/cmd/internal/program"
)

// waitFlags name the sessions to wait for.
type waitFlags struct {
	agentFlags
	Names []string `arg:"" name:"name" complete:"sessions" help:"Names of sessions."`
}

func (*waitFlags) Help() string {
	return `Waits until all commands of the sessions have exited. Its exit code is that of the command; if there are several commands, the first exit code that is not 0.

Examples:

    agent wait --url 127.0.0.1:7000 nightly
    agent wait --url 127.0.0.1:7000 --timeout 1h build-1 build-2

Exit codes: that of the command, 124 after --timeout, 125 when agent itself failed, 2 for a wrong command line.`
}

func (f *waitFlags) Check() error { return f.validNames(f.Names...) }

func (f *waitFlags) run(sys program.System) int {
	return f.on(sys, exitExecFailure, func(ctx context.Context, c *client.Client) (int, error) {
		all, err := sessions.Find(ctx, c, f.Names...)
		if err != nil {
			return 0, err
		}
		return waitFor(ctx, all)
	})
}

// maxWaits bounds how many processes are waited for at once.
const maxWaits = 512

// waitFor waits for all processes of the sessions at once, because the agent may not keep an ended
// process for long.
func waitFor(ctx context.Context, all []*sessions.Found) (code int, err error) {
	type end struct {
		code int
		err  error
	}
	var ends []*end
	var waiting sync.WaitGroup
	slots := make(chan struct{}, maxWaits)
	for _, s := range all {
		if _, err := s.Process(""); err != nil && len(s.Processes) == 0 {
			return 0, err
		}
		for _, p := range s.Processes {
			e := new(end)
			ends = append(ends, e)
			slots <- struct{}{}
			waiting.Go(func() {
				defer func() { <-slots }()
				e.code, e.err = s.Observer.Wait(ctx, p.ProcessID)
			})
		}
	}
	waiting.Wait()
	for _, e := range ends {
		if e.err != nil {
			return 0, e.err
		}
		if code == 0 {
			code = e.code
		}
	}
	return code, nil
}
