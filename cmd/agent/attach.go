package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/agent/console"
	"github.com/execagent/execagent/cmd/agent/sessions"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/protocol"
)

// attachFlags say which command is joined, and how.
type attachFlags struct {
	agentFlags
	Take       bool   `help:"Take the place of the client that is attached, if there is one. It ends."`
	Logs       bool   `help:"Print what has been kept of the output first."`
	NoStdin    bool   `short:"n" help:"Do not pass standard input."`
	DetachKeys string `default:"" env:"AGENT_DETACH_KEYS" name:"detach-keys" placeholder:"KEYS" help:"What to type at a terminal to leave again. Default: ctrl-p,ctrl-q."`

	Name    string `arg:"" name:"name" complete:"sessions" help:"Name of the session."`
	Process string `arg:"" optional:"" name:"process" help:"Process of the session, where several run: see agent ps."`
}

func (*attachFlags) Help() string {
	return `Makes this program the console of a command that runs already, as agent exec is of one that it has started: standard input, output and error, signals, the terminal if it has one. It shows what is printed from now on. The keys of --detach-keys, ~. at the start of a line, three Ctrl-C within a second where there is no terminal, and a lost connection leave the command running. Nobody is attached but one at a time.

Examples:

    agent attach --url 127.0.0.1:7000 nightly
    agent attach --url 127.0.0.1:7000 --take --logs shell

Exit codes: that of the command, 0 after the keys, 125 when agent itself failed, 2 for a wrong command line.`
}

// Validate finds flags that contradict each other. The parser calls it.
func (f *attachFlags) Validate() error {
	if err := checkKeys(f.DetachKeys); err != nil {
		return err
	}
	if err := validNames(f.Name); err != nil {
		return err
	}
	return f.validate()
}

func (f *attachFlags) run(sys program.System) int {
	code, err := attach(sys, f)
	if err != nil {
		return failed(sys, err, exitExecFailure)
	}
	return code
}

func attach(sys program.System, flags *attachFlags) (code int, err error) {
	con := console.Open(sys)
	defer con.Close()
	if limit := flags.Timeout; limit > 0 {
		defer time.AfterFunc(limit, func() { con.End(timeoutError(limit)) }).Stop()
	}
	ctx := con.Context()
	c, err := flags.Connect(ctx, sys, func(cfg *client.Config) {
		cfg.SessionName, cfg.Existing, cfg.Take = flags.Name, true, flags.Take
	})
	switch {
	case sessions.Attached(err):
		return 0, fmt.Errorf("session %s has a client: --take takes its place", flags.Name)
	case sessions.Unknown(err):
		return 0, sessions.NoSuch(flags.Name)
	case err != nil:
		return 0, err
	}
	defer c.Close()
	command := console.Command{
		Client: c, Stdin: !flags.NoStdin && hasStdin(sys), Keep: true, DetachKeys: parseKeys(flags.DetachKeys), Redraw: true,
	}
	info, err := c.Info(ctx)
	if err != nil {
		return 0, err
	}
	command.Capabilities = info.Capabilities
	listed, err := join(ctx, c, flags)
	if err != nil {
		return 0, err
	}
	command.Process, command.TTY = listed.handle, listed.TTY
	if code, err = con.Join(command); err != nil {
		return code, leftNamed(sys, flags.Name, err)
	}
	return code, nil
}

// joined is a process of the session with the handle that its output comes from.
type joined struct {
	protocol.ListedProcess
	handle *client.Process
}

// join finds the process, and follows it from now on, or from the beginning of what is kept.
func join(ctx context.Context, c *client.Client, flags *attachFlags) (joined, error) {
	for {
		all, err := c.Processes(ctx)
		if err != nil {
			return joined{}, err
		}
		found := sessions.Found{ListedSession: protocol.ListedSession{Name: flags.Name}, Processes: all}
		p, err := found.Joinable(flags.Process)
		if err != nil {
			return joined{}, err
		}
		j := joined{ListedProcess: p}
		if flags.Logs {
			j.handle, err = c.Attach(ctx, p.ProcessID)
			return j, err
		}
		j.handle, err = c.AttachAfter(ctx, p.ProcessID, max(p.NextSeq, 1)-1)
		if _, gap := errors.AsType[*client.GapError](err); !gap {
			return j, err
		}
		// It has printed more since than is kept.
	}
}
