package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/agent/internal/sessions"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/protocol"
)

// killFlags name the signal, and the sessions that get it.
type killFlags struct {
	agentFlags
	Signal string   `short:"s" default:"KILL" placeholder:"SIGNAL" help:"HUP, INT, QUIT, KILL, USR1, USR2, TERM, STOP, CONT or WINCH, or the signal's number. Default: ${default}."`
	Names  []string `arg:"" name:"name" complete:"sessions" help:"Names of sessions."`
}

func (*killFlags) Help() string {
	return `Sends the signal to the process groups of all commands in the sessions, and prints the sessions' names. If a command has ended and its children still run, as agent ps shows, the children get the signal. A session keeps its exit codes and output until a day has passed or agent end ends it.

Examples:

    agent kill --url 127.0.0.1:7000 nightly
    agent kill --url 127.0.0.1:7000 -s TERM nightly

Exit codes: 0, 1 when something could not be signalled, such as what has ended, 2 for a wrong command line.`
}

func (f *killFlags) Check() error {
	if _, err := sessions.ParseSignal(f.Signal); err != nil {
		return fmt.Errorf("--signal: %w", err)
	}
	return f.validNames(f.Names...)
}

func (f *killFlags) run(sys program.System) int {
	return f.on(sys, program.ExitFailure, func(ctx context.Context, c *client.Client) (int, error) {
		signal, err := sessions.ParseSignal(f.Signal)
		if err != nil {
			return 0, err
		}
		return eachNamed(ctx, sys, c, f.Names, func(s *sessions.Found) error {
			there := append(s.Running(), s.Left()...)
			if len(there) == 0 {
				return fmt.Errorf("nothing runs in session %s: agent end %s ends it", s.Name, s.Name)
			}
			for _, p := range there {
				if err := send(ctx, s.Observer, p, signal); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// send signals a process. If the connection is lost before the answer, it sends the signal again,
// because a second signal does less harm than no signal.
func send(ctx context.Context, o *client.Observer, p protocol.ListedProcess, signal protocol.Signal) error {
	if signal == protocol.SignalKill && !p.Exited {
		_, err := o.Terminate(ctx, p.ProcessID) // which reaches more processes
		return err
	}
	for {
		err := o.Signal(ctx, p.ProcessID, signal)
		if lost, ok := errors.AsType[*client.DisconnectedError](err); !ok || !lost.Sent {
			return err
		}
	}
}

// eachNamed calls do for each of the sessions, and prints the names of the sessions for which do
// succeeds. It reports an error and goes on.
func eachNamed(ctx context.Context, sys program.System, c *client.Client, names []string, do func(*sessions.Found) error) (int, error) {
	code := program.ExitOK
	for _, name := range names {
		s, err := sessions.Named(ctx, c, name)
		if err == nil {
			err = do(s)
		}
		if ctx.Err() != nil {
			return 0, err
		}
		if err != nil {
			program.Complain(sys.Stderr, sys.Hint(err))
			code = program.ExitFailure
			continue
		}
		if _, err := fmt.Fprintln(sys.Stdout, name); err != nil {
			return 0, err
		}
	}
	return code, nil
}
