package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/agent/console"
	"github.com/execagent/execagent/cmd/agent/sessions"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/protocol"
)

// Exit codes of exec besides the command's own, as those of env(1) and
// timeout(1).
const (
	exitTimedOut      = 124
	exitExecFailure   = 125 // agent itself failed
	exitCannotExecute = 126
	exitNotFound      = 127
	exitSignal        = 128 // plus the number
)

// runExec runs a command through the protocol. The result is its exit code.
func runExec(sys program.System, flags *execFlags) int {
	e := &execution{sys: sys, flags: flags}
	code, err := e.run()
	if err == nil {
		return code
	}
	return failed(sys, err, max(code, exitExecFailure))
}

// failed complains of an error, unless it is a signal, and returns the exit code: that of the
// signal or of the timeout if it is one of these, else code.
func failed(sys program.System, err error, code int) int {
	if killed, ok := errors.AsType[console.SignalError](err); ok {
		return exitSignal + int(killed.Signal)
	}
	program.Complain(sys.Stderr, err)
	if _, ok := errors.AsType[timeoutError](err); ok {
		return exitTimedOut
	}
	return code
}

// timeoutError is why an exec ends that has taken longer than --timeout.
type timeoutError time.Duration

func (e timeoutError) Error() string { return fmt.Sprintf("timed out after %v", time.Duration(e)) }

// execution is one run of a command.
type execution struct {
	sys     program.System
	flags   *execFlags
	console *console.Console

	client *client.Client
	name   string // of the session; "": it has none
	info   *protocol.EnvironmentInfo
}

// run returns the exit code of the command. With an error the code is
// exitCannotExecute or exitNotFound where one of them fits, else 0.
func (e *execution) run() (code int, err error) {
	e.console = console.Open(e.sys)
	defer e.console.Close()
	if limit := e.flags.Timeout; limit > 0 {
		defer time.AfterFunc(limit, func() { e.console.End(timeoutError(limit)) }).Stop()
	}
	ctx := e.console.Context()
	c, disconnect, err := e.connect(ctx)
	if err != nil {
		return 0, err
	}
	defer disconnect()
	e.client = c
	if e.info, err = c.Info(ctx); err != nil {
		return 0, err
	}
	params, err := e.params()
	if err != nil {
		return 0, err
	}
	if e.flags.Detach {
		return e.startDetached(ctx, params)
	}
	process, err := c.Start(ctx, params)
	if err != nil {
		return e.notStarted(ctx, params, err)
	}
	code, err = e.console.Join(console.Command{
		Client: c, Process: process, Capabilities: e.info.Capabilities, TTY: e.flags.TTY, Stdin: params.PipeStdin,
		Keep: e.name != "", DetachKeys: e.flags.detachKeys(),
	})
	if e.name == "" || err == nil {
		return code, err
	}
	if _, late := errors.AsType[timeoutError](err); late {
		e.forget()
	}
	return code, leftNamed(e.sys, e.name, err)
}

// params makes the request to start.
func (e *execution) params() (protocol.StartParams, error) {
	p := protocol.StartParams{
		Argv:      e.flags.Command,
		TTY:       e.flags.TTY,
		PipeStdin: e.hasStdin(),
		Env:       map[string]string{},
		EnvPolicy: &protocol.EnvPolicy{Inherit: protocol.InheritCore, Exclude: []string{}, Set: map[string]string{}, IncludeOnly: []string{}},
	}
	if e.name != "" {
		p.ProcessID = sessions.Main
	}
	if p.Argv[0] == "--" {
		p.Argv = p.Argv[1:]
	}
	if !e.flags.Elsewhere() {
		p.EnvPolicy.Inherit, p.EnvPolicy.IgnoreDefaultExcludes = protocol.InheritAll, true
	}
	dir, err := e.dir()
	if err != nil {
		return p, err
	}
	p.Cwd = protocol.NewPathURI(dir)
	if e.flags.TTY {
		if term, ok := e.sys.Lookup("TERM"); ok {
			p.Env["TERM"] = term
		}
		if rows, cols, ok := e.console.Size(); ok && e.info.Capabilities.ProcessResize {
			p.Rows, p.Cols = &rows, &cols
		}
	}
	variables, err := e.variables()
	if err != nil {
		return p, err
	}
	for _, entry := range variables {
		name, value, ok := strings.Cut(entry, "=")
		if !ok {
			// Without a value the variable of this process is passed on, if it is
			// set, as docker run -e does.
			if value, ok = e.sys.Lookup(name); !ok {
				continue
			}
		}
		p.Env[name] = value
	}
	return p, nil
}

// maxEnvFile is how long a file of variables may be, in bytes.
const maxEnvFile = 1 << 20

// variables are those of the files of --env-file and of -e, in this order.
func (e *execution) variables() ([]string, error) {
	var all []string
	for _, file := range e.flags.EnvFile {
		text, err := program.ReadFile(file, maxEnvFile)
		if err != nil {
			return nil, err
		}
		for n, line := range strings.Split(string(text), "\n") {
			line = strings.TrimSuffix(line, "\r")
			if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
				continue
			}
			if name, _, _ := strings.Cut(line, "="); name == "" || strings.ContainsAny(name, " \t\x00") {
				return nil, fmt.Errorf("%s:%d: %q is no name of a variable", file, n+1, name)
			}
			all = append(all, line)
		}
	}
	return append(all, e.flags.Env...), nil
}

// dir returns the absolute directory that the command runs in. A relative -C is
// below the working directory of the agent. An embedded agent has that of this
// process. If an agent elsewhere does not tell its own, the home of its user takes
// the place.
func (e *execution) dir() (string, error) {
	if !e.flags.Elsewhere() {
		return filepath.Abs(e.flags.dir())
	}
	return below(e.info, e.flags.dir())
}

// hasStdin tells whether there is standard input to pass on. /dev/null counts as
// none: without a pipe the command reads the end of input at once, whereas a pipe
// would stay open at a server that cannot close it.
func (e *execution) hasStdin() bool {
	if e.flags.Detach {
		return e.flags.Interactive // for who attaches later
	}
	return !e.flags.NoStdin && hasStdin(e.sys)
}

// hasStdin tells whether this program has standard input.
func hasStdin(sys program.System) bool {
	in, err := sys.Stdin.Stat()
	if err != nil {
		return false // closed
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(in, null)
}

// startFailed finds the exit code and the error for a command that was not
// started. The server's text does not tell a missing program from a missing
// directory, so startFailed asks for the directory.
func (e *execution) startFailed(ctx context.Context, params protocol.StartParams, err error) (int, error) {
	refused, ok := errors.AsType[*client.ServerError](err)
	if !ok {
		return 0, err
	}
	dir, _ := params.Cwd.Native() // params made it of a native path
	info, statErr := e.client.FS(nil).Stat(ctx, dir)
	if statErr != nil {
		return 0, fmt.Errorf("directory %s: %w", dir, statErr)
	}
	if !info.IsDirectory {
		return 0, fmt.Errorf("directory %s: is not a directory", dir)
	}
	text := refused.Err.Message
	for _, missing := range []string{"(os error 2)", "(os error 20)", "No viable candidates found in PATH"} {
		if strings.Contains(text, missing) {
			return exitNotFound, fmt.Errorf("%s: command not found", params.Argv[0])
		}
	}
	for _, unfit := range []string{"(os error 13)", "(os error 8)", "(os error 21)", "(os error 40)"} {
		if strings.Contains(text, unfit) {
			return exitCannotExecute, fmt.Errorf("%s: cannot execute: %s", params.Argv[0], text)
		}
	}
	return 0, err
}
