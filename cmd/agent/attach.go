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
	"github.com/execagent/execagent/cmd/agent/internal/local"
	"github.com/execagent/execagent/cmd/agent/internal/sessions"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/sandbox/refusals"
	"github.com/execagent/execagent/protocol"
)

// attachFlags name the command to join, and say how.
type attachFlags struct {
	agentFlags
	Take       bool   `help:"Take over from the client that is attached, if there is one. That client ends."`
	Logs       bool   `help:"First print the earlier output that the agent has kept."`
	NoStdin    bool   `short:"n" help:"Do not pass on standard input."`
	DetachKeys string `default:"" env:"AGENT_DETACH_KEYS" name:"detach-keys" placeholder:"KEYS" help:"Keys that detach from the command when typed at a terminal. Default: ctrl-p,ctrl-q."`
	SigProxy   bool   `default:"true" name:"sig-proxy" env:"AGENT_SIG_PROXY" help:"Pass signals on to the command, such as the signal of Ctrl-C if the command has no terminal. With --sig-proxy=false a signal ends only this program."`

	Name    string `arg:"" name:"name" complete:"sessions" help:"Name of the session."`
	Process string `arg:"" optional:"" name:"process" help:"Process of the session, if several run in it (see agent ps)."`
}

func (*attachFlags) Help() string {
	return `Connects this console to a command that is already running, as agent exec does for a command that it starts: standard input, output and error, signals, and the terminal if the command has one. It shows the output from now on; --logs shows earlier output first. Only one client can be attached at a time.

At a terminal, type the keys of --detach-keys, or ~. at the start of a line, to detach and leave the command running. If the command has no terminal, press Enter after ~. too. The command also keeps running if the terminal is closed (SIGHUP) or the connection is lost.

Ctrl-C is sent to the command: as a key if the command has a terminal, else as a signal, which ends the command unless the command handles it. Three such signals within a second end only agent attach. With --sig-proxy=false every signal ends only agent attach.

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
		cfg.SessionName, cfg.Existing, cfg.Take, cfg.Refusals = flags.Name, true, flags.Take, true
	})
	switch {
	case sessions.Attached(err):
		return 0, fmt.Errorf("session %s is in use by another client: --take takes it over", flags.Name)
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
	var refused *protocol.Refusals
	command.Refused = func(r *protocol.Refusals) { refused = r }
	if code, err = con.Join(command); err != nil {
		return code, leftNamed(sys, flags.Name, err)
	}
	local.TellRefused(sys.Stderr, refused, code == 0, refusals.Program) // there is no summary of the network
	return code, nil
}

// wayOut says how the user leaves a command, and what Ctrl-C does.
func (f *attachFlags) wayOut(command *console.Command) string {
	keys := strings.ReplaceAll(cmp.Or(f.DetachKeys, defaultKeys), ",", " ")
	text := fmt.Sprintf("attached to %s", f.Name)
	switch {
	case command.Stdin && command.TTY:
		return text + fmt.Sprintf(": type %s, or ~. at the start of a line, to leave it running", keys)
	case command.Stdin:
		text += fmt.Sprintf(": type %s, or ~. and Enter, to leave it running", keys)
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
		// Since then the process has printed more than the agent keeps.
	}
}
