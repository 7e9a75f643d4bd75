package main

import (
	"context"
	"fmt"
	"strconv"
	"syscall"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/agent/internal/sessions"
	"github.com/execagent/execagent/cmd/internal/program"
)

// logsFlags name the process whose output is printed, and say how much of it.
type logsFlags struct {
	agentFlags
	Follow     bool   `short:"f" help:"Also print new output, until the command has ended."`
	Since      string `placeholder:"WHEN" help:"Print only output since then: a duration such as 10m, or a time such as 2026-01-31T15:04:05Z."`
	Tail       string `short:"n" placeholder:"N" help:"Print only the last N lines of the output so far, or all."`
	Timestamps bool   `short:"t" help:"Print the time, in UTC, before each line."`

	Name    string `arg:"" name:"name" complete:"sessions" help:"Name of the session."`
	Process string `arg:"" optional:"" name:"process" help:"Process of the session, if it has several (see agent ps)."`
}

func (*logsFlags) Help() string {
	return `Prints the command's standard output and error to its own standard output and error. The agent keeps the newest output, 1 MiB of each process by default. If output is missing, a line on standard error that begins with "agent:" says so. A client that is attached is not disturbed. A lost connection does not change what is printed.

Examples:

    agent logs --url 127.0.0.1:7000 nightly
    agent logs --url 127.0.0.1:7000 -f --tail 20 nightly
    agent logs --url 127.0.0.1:7000 -t --since 10m nightly

Exit codes: 0, 1 when agent itself failed, 128+n when signal n ended it, 2 for a wrong command line.`
}

func (f *logsFlags) Check() error {
	if _, err := f.since(); err != nil {
		return err
	}
	if _, err := f.tail(); err != nil {
		return err
	}
	return f.validNames(f.Name)
}

func (f *logsFlags) since() (time.Time, error) {
	if f.Since == "" {
		return time.Time{}, nil
	}
	since, err := sessions.ParseSince(f.Since, time.Now())
	if err != nil {
		return time.Time{}, fmt.Errorf("--since: %w", err)
	}
	return since, nil
}

// tail returns the number of lines to print, nil for all.
func (f *logsFlags) tail() (*uint64, error) {
	if f.Tail == "" || f.Tail == "all" || f.Tail == "-1" { // as with docker and kubectl
		return nil, nil
	}
	n, err := strconv.ParseUint(f.Tail, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("--tail: %q is neither a number nor all", f.Tail)
	}
	return &n, nil
}

func (f *logsFlags) run(sys program.System) int {
	return f.on(sys, program.ExitFailure, func(ctx context.Context, c *client.Client) (int, error) {
		found, err := sessions.Named(ctx, c, f.Name)
		if err != nil {
			return 0, err
		}
		process, err := found.Process(f.Process)
		if err != nil {
			return 0, err
		}
		since, err := f.since()
		if err != nil {
			return 0, err
		}
		tail, err := f.tail()
		if err != nil {
			return 0, err
		}
		logs := sessions.Logs{
			Stdout: sys.Stdout, Stderr: sys.Stderr, Follow: f.Follow, Timestamps: f.Timestamps, Since: since, Tail: tail,
			Missing: func() {
				program.Complain(sys.Stderr, "some output is missing here, because the agent has not kept it")
			},
			Omitted: func(n uint64) {
				program.Complain(sys.Stderr, fmt.Sprintf("%d bytes of output are left out here, by the bound on the output", n))
			},
		}
		ctx, stop, err := program.WhileRead(ctx, sys.Stdout)
		if err != nil {
			return 0, err
		}
		defer stop()
		err = logs.Print(ctx, found.Observer, process.ProcessID)
		if context.Cause(ctx) == syscall.EPIPE {
			err = syscall.EPIPE
		}
		return program.ExitOK, err
	})
}
