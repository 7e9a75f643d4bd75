package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/agent/internal/console"
	"github.com/execagent/execagent/cmd/agent/internal/sessions"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/protocol"
)

const (
	// defaultKeys are the keys of docker.
	defaultKeys = "ctrl-p,ctrl-q"
	// killAfter is how long after the loss of its client a command of --on-disconnect kill ends.
	// The client tries to recover its session for the same time.
	killAfter = 5 * time.Second
	// forgetPatience is the timeout of the request to end an unwanted session.
	forgetPatience = 2 * time.Second
)

// namedFlags say how long a command outlives its client, and under which session name.
type namedFlags struct {
	Detach       bool           `short:"d" name:"detach" help:"Start the command, print the name of its session, and leave the command running. The agent must not be an embedded one (see --context)."`
	SessionName  string         `name:"name" placeholder:"NAME" help:"Name of the session. Default with -d: a random name."`
	Retain       *time.Duration `name:"retain" placeholder:"DURATION" help:"How long the agent keeps a named session when nothing runs in it. Default: a day, or what the agent allows."`
	DetachKeys   string         `default:"" env:"AGENT_DETACH_KEYS" name:"detach-keys" placeholder:"KEYS" help:"Keys that leave a command of --name running when typed at a terminal. Default: ctrl-p,ctrl-q."`
	OnDisconnect string         `default:"" enum:",keep,kill" env:"AGENT_ON_DISCONNECT" name:"on-disconnect" placeholder:"keep|kill" help:"What happens to the command when its client is gone for good: keep lets the command run for the agent's --session-ttl (80s); kill ends it 5s after the agent has noticed. Through a registry the agent notices 30s later. Default: keep."`
}

func (f *namedFlags) named() bool { return f.Detach || f.SessionName != "" }

// validate finds flags that contradict each other.
func (f *namedFlags) validate(elsewhere bool) error {
	switch {
	case f.Detach && !elsewhere:
		return errors.New("--detach needs an agent that keeps running: name one with --context, --url or --registry")
	case f.SessionName != "" && !elsewhere:
		return errors.New("--name needs an agent that keeps running: name one with --context, --url or --registry")
	case f.named() && f.OnDisconnect == "kill":
		return errors.New("--on-disconnect kill cannot be used with --name or -d, because their command outlives its client")
	case f.Retain != nil && !f.named():
		return errors.New("--retain needs --name or -d")
	case f.Retain != nil && *f.Retain < 0:
		return fmt.Errorf("--retain %v is negative", *f.Retain)
	}
	if f.SessionName != "" {
		if err := sessions.CheckName(f.SessionName); err != nil {
			return fmt.Errorf("--name: %w", err)
		}
	}
	return checkKeys(f.DetachKeys)
}

func checkKeys(text string) error {
	if _, err := console.ParseKeys(cmp.Or(text, defaultKeys)); err != nil {
		return fmt.Errorf("--detach-keys: %w", err)
	}
	return nil
}

func (f *namedFlags) detachKeys() []byte { return parseKeys(f.DetachKeys) }

// parseKeys reads keys that checkKeys has accepted; "" stands for defaultKeys.
func parseKeys(text string) []byte {
	parsed, _ := console.ParseKeys(cmp.Or(text, defaultKeys))
	return parsed
}

// onDisconnect makes the session end with its client, if --on-disconnect kill is given.
func (f *namedFlags) onDisconnect(cfg *client.Config) {
	if f.OnDisconnect == "kill" {
		cfg.Retain, cfg.RecoveryTimeout = new(killAfter), killAfter
	}
}

// connectNamed connects to an empty session with the name of the flags, or with a new name. It ends
// a session of that name if nothing runs in it.
func (e *execution) connectNamed(ctx context.Context) (*client.Client, error) {
	for {
		name := e.flags.SessionName
		if name == "" {
			name = sessions.NewName()
		}
		c, err := e.flags.Connect(ctx, e.sys, func(cfg *client.Config) {
			cfg.SessionName, cfg.Retain = name, e.flags.Retain
			if !e.flags.Detach {
				answers(e.console)(cfg)
				e.answersHosts()(cfg)
			}
		})
		if sessions.Attached(err) && e.flags.SessionName != "" {
			return nil, fmt.Errorf("session %s is in use by another client: agent attach --take %s takes the session over, agent kill %s kills its processes", name, name, name)
		}
		if err != nil && !sessions.Attached(err) {
			return nil, err
		}
		if err == nil {
			free, err := e.vacate(ctx, c, name)
			if free {
				e.name = name
				return c, nil
			}
			_ = c.Close() // the client has done nothing
			if err != nil {
				return nil, err
			}
		}
	}
}

// vacate reports whether the session that c has opened is empty. If all its processes have ended, it
// ends the session, for the next attempt.
func (e *execution) vacate(ctx context.Context, c *client.Client, name string) (free bool, err error) {
	if c.Session().Created {
		return true, nil
	}
	all, err := c.Processes(ctx)
	switch {
	case err != nil:
		return false, err
	case len(all) == 0:
		return true, nil
	case !slices.ContainsFunc(all, func(p protocol.ListedProcess) bool { return !p.Closed }):
		err := c.EndSession(ctx, c.SessionID())
		if err == nil {
			program.Complain(e.sys.Stderr, fmt.Sprintf("the output of the earlier session %s (%s) is discarded", name, sessions.Status(&all[len(all)-1])))
		}
		return false, err
	case e.flags.SessionName == "":
		return false, nil // another client has made up the same name
	}
	if found := (&sessions.Found{Processes: all}); len(found.Running()) == 0 {
		return false, fmt.Errorf("processes that the command of session %s has left behind still run: agent logs -f %s follows their output, agent kill %s ends them", name, name, name)
	}
	return false, fmt.Errorf("something runs in session %s: agent attach %s joins it, agent end --force %s ends it", name, name, name)
}

// startDetached starts the command and prints the name of its session. If the answer is lost with
// the connection, it finds out whether the command runs.
func (e *execution) startDetached(ctx context.Context, params protocol.StartParams) (int, error) {
	for {
		err := e.client.Call(ctx, protocol.MethodProcessStart, &params, nil)
		if lost, ok := errors.AsType[*client.DisconnectedError](err); ok && lost.Sent {
			all, err := e.client.Processes(ctx)
			if err != nil {
				return 0, err
			}
			if len(all) == 0 {
				continue
			}
		} else if err != nil {
			return e.notStarted(ctx, params, err)
		}
		if _, err := fmt.Fprintln(e.sys.Stdout, e.name); err != nil {
			return 0, fmt.Errorf("printing the name of the session, %s: %w", e.name, err)
		}
		return program.ExitOK, nil
	}
}

// notStarted does what startFailed does, and then calls forget.
func (e *execution) notStarted(ctx context.Context, params protocol.StartParams, err error) (int, error) {
	code, err := e.startFailed(ctx, params, err)
	e.forget()
	return code, err
}

// forget ends the session of a command that was not started, or that took too long.
func (e *execution) forget() {
	if e.name == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), forgetPatience)
	defer cancel()
	// An error changes nothing, because the agent ends the session by itself later.
	_ = e.client.EndSession(ctx, e.client.SessionID())
}

// leftNamed tells the user how to return to a command that outlives its console. It returns the
// error that remains to be reported.
func leftNamed(sys program.System, name string, err error) error {
	_, late := errors.AsType[timeoutError](err)
	switch {
	case errors.Is(err, client.ErrTaken):
		return fmt.Errorf("another client has taken over session %s", name)
	case sessions.Unknown(err):
		return fmt.Errorf("session %s has ended", name)
	case late:
		return err
	}
	does := "runs on"
	if _, lost := errors.AsType[*client.DisconnectedError](err); lost {
		does = "may run on"
	}
	program.Complain(sys.Stderr, sys.Hint(fmt.Sprintf("%s %s: agent attach %s returns to it, agent kill %s ends it", name, does, name, name)))
	if errors.Is(err, console.ErrDetached) {
		return nil
	}
	return err
}
