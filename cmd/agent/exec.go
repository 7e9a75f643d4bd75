package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
)

// Exit codes of exec besides the command's own, as those of env(1) and
// timeout(1).
const (
	exitExecFailure   = 125 // agent itself failed
	exitCannotExecute = 126
	exitNotFound      = 127
	exitSignal        = 128 // plus the number
)

const (
	// quiet is how long exec goes on after the command has exited, while processes
	// that the command has left in the background write nothing.
	quiet = time.Second
	// signalPatience is how long the agent may take to answer a request to signal
	// or to end the command, a lost connection included.
	signalPatience = 2 * time.Second
	// lossPatience is how long the connection is lost before the user hears of it.
	lossPatience = 2 * time.Second
)

// runExec runs a command through the protocol. The result is its exit code.
func runExec(sys system, flags *execFlags) int {
	signals := make(chan os.Signal, 8)
	catch(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGWINCH)
	defer signal.Stop(signals)

	e := &execution{sys: sys, flags: flags, signals: signals, stdin: newTerminal(sys.stdin)}
	code, err := e.run()
	e.stdin.restore()
	if err == nil {
		return code
	}
	if killed, ok := errors.AsType[signalError](err); ok {
		return exitSignal + int(killed.Signal)
	}
	complain(sys.stderr, err)
	return max(code, exitExecFailure)
}

// signalError is the error of an exec that a signal has to end: the command was
// not running yet, the server refused to pass the signal on, or the reader of the
// output has gone (SIGPIPE).
type signalError struct{ syscall.Signal }

func (e signalError) Error() string { return "ended by signal: " + e.Signal.String() }

// execution is one run of a command.
type execution struct {
	sys     system
	flags   *execFlags
	signals <-chan os.Signal
	stdin   *terminal // nil: not a terminal

	client  *client.Client
	info    *protocol.EnvironmentInfo
	process *client.Process
	lost    atomic.Bool // the user was told so, and the connection is not back
}

// run returns the exit code of the command. With an error the code is
// exitCannotExecute or exitNotFound where one of them fits, else 0.
func (e *execution) run() (code int, err error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	// Until started is closed, a signal ends exec; from then on passSignals passes
	// it to the command.
	started, passing := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(passing)
		e.passSignals(ctx, cancel, started)
	}()
	defer func() { <-passing }()
	defer cancel(nil)
	// runExec restores the terminal as well. This is for a panic: it would leave
	// the user's shell in a raw terminal, where typing shows nothing.
	defer e.stdin.restore()

	disconnect, err := e.connect(ctx)
	if err != nil {
		return 0, err
	}
	defer disconnect()
	if e.info, err = e.client.Info(ctx); err != nil {
		return 0, err
	}
	params, err := e.params()
	if err != nil {
		return 0, err
	}
	if e.process, err = e.client.Start(ctx, params); err != nil {
		return e.startFailed(ctx, params, err)
	}
	close(started)
	if e.flags.TTY {
		if err := e.stdin.raw(); err != nil {
			return 0, errors.Join(err, e.terminate())
		}
	}
	telling := make(chan struct{})
	go func() {
		defer close(telling)
		e.tellLoss(ctx)
	}()
	defer func() { <-telling }()
	defer cancel(nil)
	if e.hasStdin() {
		// A read of standard input cannot be interrupted, so this goroutine may
		// last until the program ends.
		go e.copyStdin(ctx, cancel)
	}
	code, err = e.copyOutput(ctx)
	if err != nil {
		e.process.Discard()
		// Its output goes nowhere from now on, so the command must not run on.
		_ = e.terminate()
	}
	return code, err
}

// params makes the request to start.
func (e *execution) params() (protocol.StartParams, error) {
	p := protocol.StartParams{
		Argv:      e.flags.Command,
		TTY:       e.flags.TTY,
		PipeStdin: e.hasStdin(),
		Env:       map[string]string{},
		EnvPolicy: &protocol.EnvPolicy{Inherit: protocol.InheritCore},
	}
	if p.Argv[0] == "--" {
		p.Argv = p.Argv[1:]
	}
	if len(p.Argv) == 0 || p.Argv[0] == "" {
		return p, errors.New("the command is empty")
	}
	if !e.flags.elsewhere() {
		p.EnvPolicy.Inherit, p.EnvPolicy.IgnoreDefaultExcludes = protocol.InheritAll, true
	}
	dir, err := e.dir()
	if err != nil {
		return p, err
	}
	p.Cwd = protocol.NewPathURI(dir)
	if e.flags.TTY {
		if term, ok := e.sys.lookup("TERM"); ok {
			p.Env["TERM"] = term
		}
		if rows, cols, ok := e.size(); ok && e.info.Capabilities.ProcessResize {
			p.Rows, p.Cols = &rows, &cols
		}
	}
	for _, entry := range e.flags.Env {
		name, value, ok := strings.Cut(entry, "=")
		if name == "" {
			return p, fmt.Errorf("-e %q has no name", entry)
		}
		if !ok {
			// Without a value the variable of this process is passed on, if it is
			// set, as docker run -e does.
			if value, ok = e.sys.lookup(name); !ok {
				continue
			}
		}
		p.Env[name] = value
	}
	return p, nil
}

// dir returns the absolute directory that the command runs in. A relative -C is
// below the working directory of the agent. An embedded agent has that of this
// process. If an agent elsewhere does not tell its own, the home of its user takes
// the place.
func (e *execution) dir() (string, error) {
	if !e.flags.elsewhere() {
		return filepath.Abs(e.flags.Dir)
	}
	if path.IsAbs(e.flags.Dir) {
		return path.Clean(e.flags.Dir), nil
	}
	base := e.info.Cwd
	if base.IsZero() {
		base = e.info.UserHomeDir
	}
	if base.IsZero() {
		return "", errors.New("the agent does not say where it is: use -C with an absolute directory")
	}
	native, err := base.Native()
	if err != nil {
		return "", err
	}
	return path.Join(native, e.flags.Dir), nil
}

// hasStdin tells whether there is standard input to pass on. /dev/null counts as
// none: without a pipe the command reads the end of input at once, whereas a pipe
// would stay open at a server that cannot close it.
func (e *execution) hasStdin() bool {
	if e.flags.NoStdin {
		return false
	}
	in, err := e.sys.stdin.Stat()
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
