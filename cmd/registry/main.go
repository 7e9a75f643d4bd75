// Command registry is the server of remote mode. Executors register with it,
// harnesses ask it where an executor is, and the two exchange messages through its
// rendezvous. Operators make and revoke keys with the same program. See registry
// --help.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/execagent/execagent/cmd/internal/commandline"
	"github.com/execagent/execagent/cmd/internal/completion"
	"github.com/execagent/execagent/cmd/internal/layers"
	"github.com/execagent/execagent/internal/build"
	"github.com/execagent/execagent/internal/secretfile"
	"github.com/execagent/execagent/registry/store"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	// While SIGPIPE is caught, a registry whose log nobody reads any more goes on;
	// otherwise the next line of its log would kill it.
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

// system is what the program is started with.
type system struct {
	args        []string         // without the program's name
	home, state string           // HOME and XDG_STATE_HOME
	config      string           // the user's file; "" for none
	signals     <-chan os.Signal // that end the program
	hangups     <-chan os.Signal // that end a command, and make a server reload
	stdout      io.Writer
	stderr      io.Writer
}

// run parses the command line and does what it says. The result is the exit
// code.
func run(sys system) int {
	parser, commands, err := newParser(sys)
	if err != nil {
		return sys.fail(err)
	}
	args := sys.args
	if len(args) > 0 && args[0] == "help" {
		args = append(slices.Clone(args[1:]), "--help")
	}
	command, err := commandline.Command(parser.Model, args, nil)
	if err != nil {
		return sys.wrong(command, err)
	}
	commandline.NoEmptyPaths(parser.Model.Node)
	parsed, overrides, err := sys.parse(parser, command, args)
	if err != nil {
		return sys.wrong(command, err)
	}
	for _, override := range overrides {
		if commands.Serve.LogFormat == "json" {
			newLogger(sys.stderr, &commands.Serve).Warn(override)
		} else {
			sys.complain(override)
		}
	}
	switch selected := parsed.Selected(); selected.Target.Addr().Interface() {
	case &commands.Keys.Create:
		err = commands.Keys.Create.run(sys)
	case &commands.Keys.List:
		err = commands.Keys.List.run(sys)
	case &commands.Keys.Rotate:
		err = commands.Keys.Rotate.run(sys)
	case &commands.Keys.Revoke:
		err = commands.Keys.Revoke.run(sys)
	case &commands.Identities.Add:
		err = commands.Identities.Add.run(sys)
	case &commands.Identities.List:
		err = commands.Identities.List.run(sys)
	case &commands.Identities.Remove:
		err = commands.Identities.Remove.run(sys)
	case &commands.Config.Show:
		if err := commands.Config.Show.run(sys); err != nil {
			return sys.wrong("config show", err)
		}
	case &commands.Environments:
		err = commands.Environments.run(sys)
	case &commands.Backup:
		err = commands.Backup.run(sys)
	case &commands.Restore:
		err = commands.Restore.run(sys)
	case &commands.Demo:
		ctx, cancel := sys.context()
		defer cancel()
		err = runDemo(ctx, sys.stdout, &commands.Demo)
	case &commands.Status:
		err = commands.Status.run(sys)
	case &commands.Version:
		err = build.This("registry").Print(sys.stdout, commands.Version.JSON)
	case &commands.Completion:
		_, err = sys.stdout.Write(completion.Script(commands.Completion.Shell, parser.Model))
	case &commands.Man:
		err = commands.Man.run(sys)
	default:
		if len(sys.args) == 0 && commands.Serve.LogFormat != "json" && onTerminal(sys.stderr) {
			sys.complain("serving until Ctrl-C; registry --help lists what else there is")
		}
		err = commands.Serve.run(sys)
	}
	switch {
	case errors.Is(err, errLogged):
		return exitFailure
	case err != nil:
		return sys.fail(err)
	}
	return exitOK
}

// userFile is the path of the user's file; without a home there is none.
func userFile() string {
	path, _ := layers.UserFile()
	return path
}

// onTerminal tells whether w may be a terminal: it is a device for characters.
func onTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	null, _ := os.Stat(os.DevNull)
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && !os.SameFile(info, null)
}

// complain writes one line about what went wrong: the name of the program, and
// what. No line holds a secret.
func (s system) complain(what any) {
	// If standard error cannot be written to, nothing else can say so.
	_, _ = fmt.Fprintf(s.stderr, "registry: %v\n", what)
}

// fail complains, and returns the exit code for that.
func (s system) fail(err error) int {
	s.complain(err)
	return exitFailure
}

// wrong complains about a command line, and returns the exit code for that.
func (s system) wrong(command string, err error) int {
	s.complain(err)
	if command == "" {
		s.complain("see registry --help, for the options of the server registry serve --help")
	} else {
		s.complain(fmt.Sprintf("see registry %s --help", command))
	}
	return exitUsage
}

// context returns a context that the first signal ends. The caller calls the
// function, which ends the context too.
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

// endings returns two contexts: the first signal ends the first of them, the next one both. The
// caller calls stop, which ends them too.
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
