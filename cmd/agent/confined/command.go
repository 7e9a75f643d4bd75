package confined

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"github.com/execagent/execagent/agent/approval"
	"github.com/execagent/execagent/agent/egress"
	"github.com/execagent/execagent/cmd/agent/asking"
	"github.com/execagent/execagent/cmd/agent/netask"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/helper/confine"
	"github.com/execagent/execagent/helper/probe"
	"github.com/execagent/execagent/httpclient"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/sandbox/hold"
	"github.com/execagent/execagent/sandbox/resolve"
)

// Command is one command. It runs once.
type Command struct {
	Sys  program.System
	Argv []string
	Dir  string // the working directory, of this program, too

	Profile sandbox.Profile
	Network netask.Words
	Rules   *approval.Operator // nil: no rules

	Operator sandbox.Operator
	// StateDir returns the folder for records of placeholders, or why there is none.
	StateDir func() (string, error)

	terminal *asking.Terminal // nil: nobody is asked
}

// Run runs the command and returns its exit code, or returns why it did not run, with the code of
// a shell for that or with 0.
func (c *Command) Run() (code int, err error) {
	if len(c.Argv) == 0 || c.Argv[0] == "" {
		return 0, errors.New("the command is empty")
	}
	if c.Network.Managed || c.Rules != nil {
		c.terminal = asking.Open()
	}
	end := sync.OnceValue(c.terminal.Close)
	defer end()
	guard, err := c.guard()
	if _, refused := errors.AsType[refusal](err); refused {
		return exitRefused, err
	}
	if err != nil {
		return 0, err
	}
	defer guard.close()
	return c.run(guard, end)
}

// run runs a command that the rules allow. endAsking ends all questions.
func (c *Command) run(guard *guard, endAsking func() error) (code int, err error) {
	stateDir, noState := c.StateDir()
	var placeholders *hold.Placeholders
	door := confine.Door{
		Host:     func() (sandbox.Host, error) { return probe.Host(context.Background(), os.Args[0]) },
		Operator: c.Operator,
		// There were no earlier commands in this process. So Served refuses nothing
		// and only warns, of links that commands of an earlier agent may have made.
		Served: &resolve.Served{Log: slog.New(slog.NewTextHandler(c.Sys.Stderr, nil))},
		Placeholders: func() (_ *hold.Placeholders, err error) {
			if noState != nil {
				return nil, fmt.Errorf("names that the policy protects cannot be held, see --state-dir: %w", noState)
			}
			placeholders, err = hold.Open(stateDir)
			return placeholders, err
		},
		Private:     c.Rules.Hidden(),
		KeepPrivate: c.Rules != nil,
	}
	// The command gets a /dev of its own. Yet the folder has to be named even if it
	// lies in /dev/shm: a policy that grants /dev/shm shows the host's.
	if noState == nil {
		door.Private = append(door.Private, stateDir)
	}
	var held *confine.Held
	if c.Network.Managed {
		held, err = door.EnterManaged(c.Profile, confine.Managed{SOCKS5: true})
	} else {
		held, err = door.Enter(c.Profile)
	}
	environ, endNetwork := c.Sys.Environ, func() error { return nil }
	if err == nil && c.Network.Managed {
		environ, endNetwork, err = c.manage(held)
	}
	if err == nil {
		held = guard.watch(held)
		run := guard.program(c.Argv)
		if held.Unconfined() {
			err := become(run.Argv[0], c.Argv, environ)
			return confine.ShellCode(err), err
		}
		run.Env, run.Dir, run.TTY = environ, c.Dir, program.IsShownTerminal(c.Sys.Stdin)
		code, err = held.Run(run,
			[3]*os.File{c.Sys.Stdin, c.Sys.Stdout, c.Sys.Stderr},
			func(signals chan<- os.Signal) {
				program.Catch(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
			})
		err = errors.Join(err, endAsking(), endNetwork())
	}
	held.Release()
	if placeholders != nil {
		if free := placeholders.Close(); free != nil {
			program.Complain(c.Sys.Stderr, free) // the command has run, and its exit code stands
		}
	}
	return code, err
}

// manage gives the command its network, and returns the environment in which it finds that. end
// ends it, and says what was reached.
func (c *Command) manage(held *confine.Held) (environ []string, end func() error, err error) {
	network, err := netask.Start(netask.Config{
		Words: c.Network, Operator: egress.Operator{Upstream: egress.UpstreamOf(c.Sys.Environ)}, Roots: sync.OnceValue[*x509.CertPool](httpclient.TrustedRoots),
		Gate: held.Gate(), OnHost: !held.Has(sandbox.NetNS), Environ: c.Sys.Environ, Terminal: c.terminal,
	})
	if err != nil {
		return nil, nil, err
	}
	return network.Environ(), func() error { return network.Close(c.Sys.Stderr) }, nil
}

// become replaces this process by a command that nothing confines. It returns only
// with an error.
func become(program string, argv, environ []string) error {
	path, err := exec.LookPath(program)
	if err != nil {
		return err
	}
	return &os.PathError{Op: "exec", Path: path, Err: syscall.Exec(path, argv, environ)}
}
