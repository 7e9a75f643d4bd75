// Command registry is the server of remote mode. Executors register with it,
// harnesses ask it where an executor is, and the two exchange messages through its
// rendezvous. Operators make and revoke keys with the same program. See registry
// --help.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/execagent/execagent/cmd/internal/cli"
	"github.com/execagent/execagent/internal/build"
	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/secretfile"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	// SIGPIPE is caught so that a registry whose log nobody reads any more goes on. Otherwise the
	// next line of its log would kill it.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	signals, hangups := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	signal.Notify(hangups, syscall.SIGHUP)
	os.Exit(run(system{
		args:    os.Args[1:],
		home:    os.Getenv("HOME"),
		state:   os.Getenv("XDG_STATE_HOME"),
		config:  userFile(),
		signals: signals,
		hangups: hangups,
		stdout:  os.Stdout,
		stderr:  os.Stderr,
	}))
}

// system is the environment of the program.
type system struct {
	args        []string         // without the program's name
	home, state string           // HOME and XDG_STATE_HOME
	config      string           // the user's file; "" for none
	signals     <-chan os.Signal // signals that end the program
	hangups     <-chan os.Signal // signals that end a command, and make a server reload
	stdout      io.Writer
	stderr      io.Writer
}

// runner is a command with the flags of a command line.
type runner interface{ run(system) error }

// run parses the command line, runs the command and returns its exit code.
func run(sys system) int {
	args := sys.args
	if len(args) > 0 && args[0] == "help" {
		args = append(slices.Clone(args[1:]), "--help")
	}
	commands := commands(sys)
	args, wrong := commands.Here(args)
	named, err := commands.Command(args)
	if err := cmp.Or(wrong, err); err != nil {
		return sys.wrong(named, err)
	}
	line, err := sys.read(commands, cmp.Or(named.Path, "serve"), args)
	if err != nil {
		return sys.wrong(named, err)
	}
	switch line.AtOnce {
	case "help":
		err = line.Command.Help(sys.stdout)
	case "version":
		err = build.This("registry").Print(sys.stdout, false)
	default:
		sys.tell(line)
		err = line.Flags.(runner).run(sys)
	}
	wrong, ok := errors.AsType[cli.UsageError](err)
	switch {
	case ok:
		return sys.wrong(named, wrong)
	case errors.Is(err, errLogged):
		return exitFailure
	case err != nil:
		return sys.fail(err)
	}
	return exitOK
}

// tell prints remarks before a command runs.
func (s system) tell(line *cli.Line) {
	serve, ok := line.Flags.(*serveFlags)
	logs := ok && serve.LogFormat == "json"
	for _, override := range line.Overrides {
		if logs {
			newLogger(s.stderr, serve).Warn(override)
		} else {
			s.complain(override)
		}
	}
	if ok && len(s.args) == 0 && !logs && onTerminal(s.stderr) {
		s.complain("serving until Ctrl-C; registry --help lists the other commands")
	}
}

// userFile returns the path of the user's file, or "" if the user has no home.
func userFile() string {
	path, _ := cli.UserFile()
	return path
}

// onTerminal reports whether w may be a terminal, which it is if w is a character device.
func onTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	null, _ := os.Stat(os.DevNull)
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && !os.SameFile(info, null)
}

// complain writes an error on one line, after the name of the program. what holds no secret.
func (s system) complain(what any) {
	// If standard error cannot be written to, there is no other way to report it.
	_, _ = fmt.Fprintf(s.stderr, "registry: %v\n", what)
}

// fail complains, and returns the exit code for a failure.
func (s system) fail(err error) int {
	s.complain(err)
	return exitFailure
}

// wrong complains about a command line, and returns the exit code for a wrong command line.
func (s system) wrong(command *cli.Command, err error) int {
	s.complain(err)
	if command.Path == "" {
		s.complain("see registry --help, or registry serve --help for the server's options")
	} else {
		s.complain(fmt.Sprintf("see registry %s --help", command.Path))
	}
	return exitUsage
}

// context returns a context that ends with the first signal. The caller calls the function, which
// ends the context too.
func (s system) context() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		var received os.Signal
		select {
		case received = <-s.signals:
		case received = <-s.hangups:
		case <-ctx.Done():
			return
		}
		cancel(fmt.Errorf("ended by signal: %v", received))
	}()
	return ctx, func() { cancel(nil) }
}

// endings returns two contexts. The first signal ends the first context, and the second signal ends
// both. The caller calls stop, which ends them too.
func (s system) endings() (orderly, atOnce context.Context, stop func()) {
	orderly, end := context.WithCancelCause(context.Background())
	atOnce, abort := context.WithCancelCause(context.Background())
	go func() {
		for _, cancel := range []context.CancelCauseFunc{end, abort} {
			select {
			case received := <-s.signals:
				cancel(fmt.Errorf("ended by signal: %v", received))
			case <-atOnce.Done():
			}
		}
	}()
	return orderly, atOnce, func() { end(nil); abort(nil) }
}

// withExisting is withStore for a command that makes no store, because it would find an empty one.
func (f *storeFlags) withExisting(sys system, do func(context.Context, *store.Store) error) error {
	if f.NATSURL == "" {
		if _, err := os.Stat(filepath.Join(f.Data, "nats")); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("there is no registry in %s: name its folder with --data, or its cluster with --nats-url", f.Data)
		}
	}
	return f.withStore(sys, do)
}

// withStore opens the store, calls do with it and closes it. The context of do ends
// with the first signal. A registry may be running on the same store.
func (f *storeFlags) withStore(sys system, do func(context.Context, *store.Store) error) (err error) {
	if err := secretfile.Report(func(warning string) { sys.complain(warning) }, f.NATSCreds); err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(sys.stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	cfg := f.config(logger)
	cfg.Shared = true
	cfg.Waiting = func(reason string) { sys.complain(fmt.Sprintf("waiting for NATS at %s: %s", cfg.Place(), reason)) }
	ctx, cancel := sys.context()
	defer cancel()
	st, err := store.Open(ctx, cfg)
	if err != nil {
		return err
	}
	err = do(ctx, st)
	if closeErr := st.Close(); err == nil {
		err = closeErr
	}
	return err
}
