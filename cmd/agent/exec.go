package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"strings"
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
	// quiet is how long the processes that a command has left in the background may
	// be silent, once the command itself has exited, before exec ends.
	quiet = time.Second
	// signalPatience is how long the agent may take to pass a signal on. It also
	// bounds the attempt to end a command that nobody waits for any more.
	signalPatience = 2 * time.Second
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

// signalError says that a signal ended exec: there was no command to pass it
// to, or nobody reads the output any more.
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
}

// run returns the exit code of the command. With an error it is 0, or above 125 if
// the error has an exit code of its own.
func (e *execution) run() (code int, err error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	// Until the command runs, signals are for exec.
	started, passing := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(passing)
		e.passSignals(ctx, cancel, started)
	}()
	defer func() { <-passing }()
	defer cancel(nil)
	// Deferred for a panic, too: a shell in a raw terminal is hard to use.
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
	if e.hasStdin() {
		go e.copyStdin() // ends with the process or with the program
	}
	code, err = e.copyOutput(ctx)
	if err != nil {
		e.process.Discard()
		// Nobody follows the command any more, so it is not left running.
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
			// As docker run does: a name alone passes on what there is.
			if value, ok = e.sys.lookup(name); !ok {
				continue
			}
		}
		p.Env[name] = value
	}
	return p, nil
}

// dir is the directory that the command runs in. A relative one is below the working
// directory of the agent, which for an embedded one is ours.
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

// hasStdin tells whether there is any input to pass on. An empty one needs no
// pipe, which a server may have no way to close.
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

// startFailed finds the exit code for a command that was not started. The
// server's text is the same for a missing program and a missing directory.
func (e *execution) startFailed(ctx context.Context, params protocol.StartParams, err error) (int, error) {
	refused, ok := errors.AsType[*client.ServerError](err)
	if !ok {
		return 0, err
	}
	dir, _ := params.Cwd.Native() // it was made of a native path
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

// copyStdin passes the standard input on and ends that of the command with it.
func (e *execution) copyStdin() {
	last := &lastByte{w: e.process.Stdin()}
	// An error in reading ends the input, as its end does. An error in writing means
	// that the command or the connection has ended; copyOutput finds that out.
	if _, err := io.Copy(last, onlyReader{e.sys.stdin}); last.err != nil && err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), signalPatience)
	defer cancel()
	switch {
	case e.flags.TTY:
		// Within a line the first one only ends the line, and the second one
		// the input: termios(3).
		end := []byte{4}
		if last.seen && last.last != '\n' {
			end = []byte{4, 4}
		}
		_ = e.process.Write(ctx, end)
	case e.info.Capabilities.ProcessCloseStdin:
		_ = e.process.Stdin().Close()
	default:
		complain(e.sys.stderr, "the server has no way to end the command's standard input; see -n")
	}
}

// onlyReader hides the WriteTo of a file, which would copy in smaller pieces.
type onlyReader struct{ io.Reader }

// lastByte remembers how the input ended.
type lastByte struct {
	w    io.Writer
	last byte
	seen bool
	err  error
}

func (l *lastByte) Write(p []byte) (int, error) {
	if len(p) > 0 {
		l.last, l.seen = p[len(p)-1], true
	}
	var n int
	n, l.err = l.w.Write(p)
	return n, l.err
}
