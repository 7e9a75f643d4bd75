package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/approval"
	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/internal/sandbox/changes"
	"github.com/execagent/execagent/internal/sandbox/confine"
	"github.com/execagent/execagent/internal/sandbox/placeholder"
	"github.com/execagent/execagent/internal/sandbox/probe"
	"github.com/execagent/execagent/internal/sandbox/refusals"
	"github.com/execagent/execagent/internal/sandbox/resolve"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/sandbox"
)

// Command is a command to run on this machine. Run may be called once.
type Command struct {
	Sys  program.System
	Argv []string
	Dir  string // working directory of the command and of this program

	Profile sandbox.Profile
	Network NetworkWords
	// Upstream is the environment that names the proxies through which a managed network leads out. Sys.Environ
	// may lack them, because a URL with a password is hidden from the command.
	Upstream []string
	Rules    *approval.Operator // nil: no rules
	// Limits are the resource limits of the command.
	Limits confine.Limits
	// Ask says what to ask for after a refusal; nil: refusals are not told.
	Ask refusals.Asker
	// Changes collects the folders in which the command changes something. Then the command is supervised. nil:
	// nobody wants to know.
	Changes *changes.Log

	Operator sandbox.Operator
	// StateDir returns the folder for records of placeholders, or an error that says why there is none.
	StateDir func() (string, error)

	network      *managedNetwork           // nil: the network is not managed
	questions    *questioner               // nil: nobody can be asked
	placeholders *placeholder.Placeholders // nil: the sandbox needs none
}

// Run runs the command and returns its exit code. With an error, the command did not run: code is
// the exit code of a shell for this error, or 0.
func (c *Command) Run() (code int, err error) {
	if len(c.Argv) == 0 || c.Argv[0] == "" {
		return 0, errors.New("the command is empty")
	}
	c.questions = newQuestioner(c.Sys.Questions)
	defer c.questions.Close()
	r := &ruled{allowed: make(chan error, 1)}
	defer r.close()
	if err := r.decide(c); err != nil {
		if _, refused := errors.AsType[refusal](err); refused {
			return exitRefused, err
		}
		return 0, err
	}
	return c.run(r)
}

// run runs the command after the rules have allowed it.
func (c *Command) run(r *ruled) (code int, err error) {
	held, err := c.enter()
	defer c.leave(held)
	defer func() { err = errors.Join(err, c.network.close(c.Sys.Stderr)) }()
	if err != nil {
		return 0, err
	}
	held = held.Watched(r.judged)
	held.Impose(c.Limits)
	if c.Ask != nil {
		if err := held.NoteRefusals(); err != nil { // such as a small limit for the size of files
			program.Complain(c.Sys.Stderr, fmt.Sprintf("sandbox: refusals will not be told: %v", err))
		}
	}
	if c.Changes != nil {
		if err := held.NoteChanges(c.Changes.Apart()); err != nil {
			return 0, err
		}
		defer func() { held.Changed(c.Changes) }()
	}
	p := r.program(c.Argv)
	if held.Unconfined() {
		runtime.LockOSThread() // which executes the command
		if err := linux.Impose(c.Limits.List()...); err != nil {
			return 0, err
		}
		err := become(p.Argv[0], c.Argv, c.Sys.Environ)
		return confine.ShellCode(err), err
	}
	p.Env, p.Dir, p.TTY = c.Sys.Environ, c.Dir, program.IsShownTerminal(c.Sys.Stdin)
	if c.Network.Managed {
		network, err := c.manage(held)
		if err != nil {
			return 0, err
		}
		p.Env = network.environ()
	}
	code, err = held.Run(p, [3]*os.File{c.Sys.Stdin, c.Sys.Stdout, os.Stderr}, func(signals chan<- os.Signal) {
		program.Catch(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	})
	c.questions.Close()
	if err == nil && c.Ask != nil {
		c.tellRefused(held, code)
	}
	return code, err
}

// tellRefused says what the sandbox has refused the command, as far as that is known. Rules and the proxy
// speak for themselves.
func (c *Command) tellRefused(held *confine.Held, code int) {
	var log refusals.Log
	held.Refused(&log)
	all, _ := log.All()
	told := len(all) > 0 || c.network.refuses()
	note := ""
	if code != 1 || !slices.Contains(answering, filepath.Base(c.Argv[0])) {
		note = held.Limits(code, told, c.Ask)
	}
	complain(c.Sys.Stderr, &log, code == 0 && c.Changes == nil, c.Ask, note)
}

// answering are programs whose exit code 1 is an answer: they fail with another one.
var answering = []string{"[", "cmp", "diff", "egrep", "false", "fgrep", "grep", "rg", "test"}

// complain writes a line for each refusal, and a note.
func complain(stderr io.Writer, log *refusals.Log, succeeded bool, ask refusals.Asker, note string) {
	all, more := log.All()
	lines := refusals.Lines(all, more, !succeeded, ask)
	if note != "" {
		lines = append(lines, note)
	}
	for _, line := range lines {
		program.Complain(stderr, "sandbox: "+line)
	}
}

// TellRefused says what an agent has refused a command; nil: nothing. The layers of others speak for themselves.
func TellRefused(stderr io.Writer, r *protocol.Refusals, succeeded bool, others ...refusals.Layer) {
	if r == nil {
		return
	}
	var log refusals.Log
	for _, one := range r.List {
		if layer := refusals.Layer(one.Layer); !slices.Contains(others, layer) {
			log.Add(refusals.Refusal{
				Layer: layer, Operation: refusals.Operation(one.Operation), Subject: one.Subject, Reason: one.Reason,
				Need: refusals.Need(one.Needs), At: one.At, Times: one.Times,
			})
		}
	}
	log.AddAll(nil, r.More)
	complain(stderr, &log, succeeded, refusals.Flags, refusals.Text(r.Note, 2<<10))
}

// enter enters the sandbox. The caller calls leave, also if enter fails.
func (c *Command) enter() (*confine.Held, error) {
	stateDir, noState := c.StateDir()
	door := confine.Door{
		Host:     c.host,
		Operator: c.Operator,
		// There were no earlier commands in this process. So Served refuses nothing. It only warns
		// of links that commands of an earlier agent may have made.
		Served: &resolve.Served{Log: slog.New(slog.NewTextHandler(c.Sys.Stderr, nil))},
		Placeholders: func() (_ *placeholder.Placeholders, err error) {
			if noState != nil {
				return nil, fmt.Errorf("the names that the policy protects cannot be reserved (see --state-dir): %w", noState)
			}
			c.placeholders, err = placeholder.Open(stateDir)
			return c.placeholders, err
		},
		Private:     c.Rules.Hidden(),
		KeepPrivate: c.Rules != nil,
	}
	if noState == nil {
		door.StateDir = stateDir
	}
	if c.Network.Managed {
		if err := c.trustProxy(&door); err != nil {
			return nil, err
		}
		return c.enterManaged(&door)
	}
	return door.Enter(c.Profile)
}

// host returns what this host can enforce. Only a supervisor knows what a command changes.
func (c *Command) host() (sandbox.Host, error) {
	host, err := probe.Host(context.Background(), os.Args[0])
	if c.Changes != nil {
		host.Layers = host.Layers.Without(sandbox.Namespaces()...)
	}
	return host, err
}

// Reached returns the hosts that the command has reached, as --network names them. words allow none of them. The
// command has ended.
func (c *Command) Reached(words *NetworkWords) ([]string, error) {
	if c.network == nil {
		return nil, nil
	}
	plan, err := words.plan(false)
	if err != nil {
		return nil, err
	}
	return c.network.tally.reached(plan), nil
}

// enterManaged enters a managed network. If this host can enforce it, but cannot make connections
// transparent, such as before Linux 5.19, it says so, and programs have to use the proxy.
func (c *Command) enterManaged(door *confine.Door) (*confine.Held, error) {
	held, err := door.EnterManaged(c.Profile, confine.Managed{SOCKS5: true, Transparent: !c.Network.Plain})
	if _, lacks := errors.AsType[*sandbox.UnenforceableError](err); !lacks || c.Network.Plain {
		return held, err
	}
	plain, without := door.EnterManaged(c.Profile, confine.Managed{SOCKS5: true})
	if without != nil {
		return nil, without
	}
	c.Network.Plain = true
	program.Complain(c.Sys.Stderr, fmt.Errorf("programs have to use the proxy that their variables name, because connections cannot be transparent: %w", err))
	return plain, nil
}

// leave undoes what enter did to the host. held may be nil.
func (c *Command) leave(held *confine.Held) {
	held.Release()
	if c.placeholders != nil {
		if err := c.placeholders.Close(); err != nil {
			program.Complain(c.Sys.Stderr, err) // the command has run, and its exit code stays
		}
	}
}

// become replaces this process by a command without a sandbox. It returns only if that fails.
func become(program string, argv, environ []string) error {
	path, err := procs.LookPath(program, "", environ)
	if err != nil {
		return &os.PathError{Op: "exec", Path: program, Err: err}
	}
	return &os.PathError{Op: "exec", Path: path, Err: syscall.Exec(path, argv, environ)}
}
