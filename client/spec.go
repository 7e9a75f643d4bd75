package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/execagent/execagent/protocol"
)

// Spec is a command, similar to one of os/exec. [protocol.StartParams], for
// [Client.Start], have more options.
type Spec struct {
	// Argv is the program, found in the PATH of the command, and its arguments.
	Argv []string
	// Dir is an absolute path on the server; "" is the server's working directory, or
	// else its user's home.
	Dir string
	// Env has entries KEY=VALUE, which are added to the inherited environment.
	Env []string
	// EnvPolicy selects the variables that the command inherits from the server; nil:
	// those that any program needs (protocol.InheritCore), without names like KEY,
	// SECRET, TOKEN.
	EnvPolicy *protocol.EnvPolicy
	// TTY gives the command a terminal instead of pipes; its standard error is then
	// part of its standard output.
	TTY *TTY
	// PipeStdin opens a pipe to the command, for [Process.Stdin]; a terminal needs
	// none. Without a pipe or a terminal, the input of the command is empty.
	PipeStdin bool
	// Builtin: Argv[0] names a built-in tool of the server, which must have
	// processBuiltins.
	Builtin bool
	// Sandbox confines the command; nil does not. The zero value of a Sandbox is refused; see
	// [protocol.Sandbox] for an example.
	Sandbox *protocol.Sandbox
	// NetworkProxy gives the command its own proxy; with a Sandbox it is the only way
	// out. See Config.Network.
	NetworkProxy *protocol.NetworkProxy
	// Timeout, if not zero, is how long the command may run. Then the server ends it with all that it has
	// started, whether or not this client is still there: with SIGTERM, and two seconds later with SIGKILL.
	// The end of a ctx is another thing: it ends the waiting of this client.
	Timeout time.Duration
	// MaxOutput, if not zero, bounds the output of each stream, in bytes, at most [protocol.MaxOutputBytes].
	// The first half comes at once and the last half at the end. See [Event.Omitted].
	MaxOutput uint64
	// Limits bound the command with all its children; nil does not. The server refuses a limit that it cannot
	// hold. [Process.Started] says what holds each.
	Limits *protocol.ProcessLimits
	// RunAs is the user that the command runs as; nil: that of the server, which has to be root otherwise.
	RunAs *protocol.RunAs
	// ID names the process in its session; "": the client chooses one.
	ID string
}

// TTY is the size of a terminal. 0 means 24 rows, or 80 columns.
type TTY struct{ Rows, Cols uint16 }

// Spawn starts a command; see [Client.Start] for errors, and for the fate of the
// command after an error.
func (c *Client) Spawn(ctx context.Context, spec Spec) (*Process, error) {
	params, err := c.params(ctx, &spec)
	if err != nil {
		return nil, err
	}
	return c.Start(ctx, params)
}

func (c *Client) params(ctx context.Context, spec *Spec) (protocol.StartParams, error) {
	params := protocol.StartParams{
		ProcessID:             spec.ID,
		Argv:                  spec.Argv,
		Env:                   make(map[string]string, len(spec.Env)),
		EnvPolicy:             spec.EnvPolicy,
		PipeStdin:             spec.PipeStdin,
		Builtin:               spec.Builtin,
		Sandbox:               spec.Sandbox,
		NetworkProxy:          spec.NetworkProxy,
		EnforceManagedNetwork: spec.NetworkProxy != nil && spec.Sandbox != nil,
		Limits:                spec.Limits,
		RunAs:                 spec.RunAs,
	}
	if spec.Timeout != 0 {
		if spec.Timeout < time.Millisecond {
			return params, fmt.Errorf("the timeout %v is shorter than a millisecond", spec.Timeout)
		}
		params.TimeoutMs = new(uint64(spec.Timeout.Milliseconds()))
	}
	if spec.MaxOutput != 0 {
		if spec.MaxOutput > protocol.MaxOutputBytes {
			return params, fmt.Errorf("the bound of %d bytes on the output is above %d", spec.MaxOutput, protocol.MaxOutputBytes)
		}
		params.MaxOutputBytes = &spec.MaxOutput
	}
	if len(spec.Argv) == 0 {
		return params, errors.New("the command is empty")
	}
	if params.EnvPolicy == nil {
		params.EnvPolicy = &protocol.EnvPolicy{Inherit: protocol.InheritCore}
	}
	for _, entry := range spec.Env {
		name, value, ok := strings.Cut(entry, "=")
		if !ok || name == "" {
			return params, fmt.Errorf("environment entry %q is not KEY=VALUE", entry)
		}
		params.Env[name] = value
	}
	if spec.TTY != nil {
		params.TTY = true
		if spec.TTY.Rows != 0 || spec.TTY.Cols != 0 {
			params.Rows, params.Cols = new(orDefault(spec.TTY.Rows, 24)), new(orDefault(spec.TTY.Cols, 80))
		}
	}
	if spec.Dir != "" {
		params.Cwd = protocol.NewPathURI(spec.Dir)
		return params, nil
	}
	info, err := c.Info(ctx)
	if err != nil {
		return params, err
	}
	if params.Cwd = info.Cwd; params.Cwd.IsZero() {
		params.Cwd = info.UserHomeDir
	}
	if params.Cwd.IsZero() {
		return params, errors.New("the server does not say where it is: Dir is needed")
	}
	return params, nil
}

func orDefault(n, otherwise uint16) uint16 {
	if n == 0 {
		return otherwise
	}
	return n
}

// Result is the output and the exit code of a command.
type Result struct {
	Stdout, Stderr []byte // of a terminal: all in Stdout
	ExitCode       int    // 128+n after signal n
	protocol.Ending
	// Bytes that MaxOutput has left out of the middle.
	StdoutOmitted, StderrOmitted uint64
}

// Run runs a command to its end, with input as its standard input, and returns all its
// output. An exit code other than 0 is no error. If ctx ends, or the output cannot be
// read, the command is terminated; the result then has the output so far. Input that is
// not empty needs the server's processCloseStdin, and cannot go to a terminal.
func (c *Client) Run(ctx context.Context, spec Spec, input []byte) (*Result, error) {
	spec.PipeStdin = len(input) > 0
	if spec.PipeStdin {
		if spec.TTY != nil {
			return nil, errors.New("input needs a pipe, not a terminal")
		}
		if err := c.require(ctx, "closing the standard input of a process", hasCloseStdin); err != nil {
			return nil, err
		}
	}
	p, err := c.Spawn(ctx, spec)
	if err != nil {
		return nil, err
	}
	var feeding sync.WaitGroup
	fed, enough := context.WithCancel(ctx)
	if spec.PipeStdin {
		feeding.Go(func() {
			// The write fails if the command has ended, or has closed its input.
			in := stdin{p, fed}
			if _, err := in.Write(input); err == nil {
				_ = in.Close()
			}
		})
	}
	var stdout, stderr bytes.Buffer
	r := &Result{}
	code, err := p.copyOutput(ctx, &stdout, &stderr, func(e *Event) {
		switch {
		case e.Kind == Exited:
			r.Ending = e.Ending
		case e.Stream == protocol.StreamStderr:
			r.StderrOmitted += e.Omitted
		default:
			r.StdoutOmitted += e.Omitted
		}
	})
	if err != nil {
		p.abandon(err)
	}
	enough()
	feeding.Wait()
	r.Stdout, r.Stderr, r.ExitCode = stdout.Bytes(), stderr.Bytes(), code
	return r, err
}
