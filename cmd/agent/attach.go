package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/agent/internal/console"
	"github.com/execagent/execagent/cmd/agent/internal/sessions"
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
	SigProxy   bool   `default:"true" name:"sig-proxy" env:"AGENT_SIG_PROXY" help:"Pass signals on, such as that of Ctrl-C to a command without a terminal. With --sig-proxy=false they end only this program."`

	Name    string `arg:"" name:"name" complete:"sessions" help:"Name of the session."`
	Process string `arg:"" optional:"" name:"process" help:"Process of the session, where several run: see agent ps."`
}

func (*attachFlags) Help() string {
	return `Makes this program the console of a command that runs already, as agent exec is of one that it has started: standard input, output and error, signals, the terminal if it has one. It shows what is printed from now on. Nobody is attached but one at a time.

At a terminal the keys of --detach-keys leave the command running, and so does ~. at the start of a line, with Enter where the command has no terminal. So do a terminal that is closed (SIGHUP) and a lost connection. Ctrl-C is for the command: one that has a terminal gets it as a key, any other as a signal, of which it dies unless it heeds it; three within a second leave one that does. With --sig-proxy=false a signal ends only agent attach.

Examples:

    agent attach --url 127.0.0.1:7000 nightly
    agent attach --url 127.0.0.1:7000 --take --logs shell
    agent attach --url 127.0.0.1:7000 -n --sig-proxy=false nightly

Exit codes: that of the command, 0 after the keys, 125 when agent itself failed, 2 for a wrong command line.`
}

func (f *attachFlags) Check() error {
	if err := checkKeys(f.DetachKeys); err != nil {
		return err
	}
	return f.validNames(f.Name)
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
	c, err := flags.Connect(ctx, sys, answers(con), func(cfg *client.Config) {
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
		KeepSignals: !flags.SigProxy,
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
	if con.AtTerminal() {
		con.Say(flags.wayOut(&command))
	}
	if code, err = con.Join(command); err != nil {
		return code, leftNamed(sys, flags.Name, err)
	}
	return code, nil
}

// wayOut says how the user leaves a command, and what Ctrl-C does.
func (f *attachFlags) wayOut(command *console.Command) string {
	keys := strings.ReplaceAll(cmp.Or(f.DetachKeys, defaultKeys), ",", " ")
	text := fmt.Sprintf("attached to %s", f.Name)
	switch {
	case command.Stdin && command.TTY:
		return text + fmt.Sprintf(": %s leaves it running, and so does ~. at the start of a line", keys)
	case command.Stdin:
		text += fmt.Sprintf(": %s leaves it running, and so does ~. with Enter", keys)
	}
	if f.SigProxy {
		return text + "; Ctrl-C interrupts it"
	}
	return text + "; Ctrl-C leaves it running"
}

// joined is a process of the session, with the handle for its output.
type joined struct {
	protocol.ListedProcess
	handle *client.Process
}

// join finds the process, and follows it from now on, or from the oldest output that is kept.
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
