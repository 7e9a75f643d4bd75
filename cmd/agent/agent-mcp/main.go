// Command agent-mcp serves the tools of agent mcp to clients that speak MCP. The program agent becomes this program,
// see package mcpconfig; it reads no command line of its own. Linux only.
//
// It is a client of an agent (executor.go), and keeps the newest output of each command (process.go). tools.json has
// the tools as clients see them, tools.go what all calls have in common, commands.go and files.go the tools
// themselves. question.go asks the user through the client. serve.go has the two transports.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/cmd/agent/internal/mcpconfig"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/build"
	"github.com/execagent/execagent/internal/secretenv"
	"github.com/execagent/execagent/procs"
)

// exitTimedOut is the exit code after --timeout, as of all commands of agent.
const exitTimedOut = 124

func main() { os.Exit(run()) }

// run serves until the client has gone, or a signal comes, and returns the exit code.
func run() int {
	if err := procs.CloseOnExec(); err != nil {
		program.Complain(os.Stderr, fmt.Errorf("the agent inherits the descriptors of this process: %w", err))
	}
	// The agent has told it already, if keys stay readable.
	environ, keys, _ := secretenv.Take(procs.Denied)
	sys := program.System{Environ: environ, Keys: keys, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	config, err := mcpconfig.Read(os.Args[1:], build.Version())
	if config != nil && config.Token != "" {
		defer os.Remove(config.Token)
	}
	if err != nil {
		return sys.Fail(err)
	}
	// Tokens must not be read from the memory of this process by the commands of an agent on this machine.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		program.Complain(os.Stderr, fmt.Errorf("other processes of this user can read the memory of this process: %w", err))
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // a client that does not read any more is an orderly end, too
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if limit := config.Target.Timeout; limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, fmt.Errorf("timed out after %v", limit))
		defer cancel()
	}
	s, err := newServer(config, sys)
	if err != nil {
		return sys.Fail(err)
	}
	defer s.close()
	if config.Listen == mcpconfig.Stdio {
		err = s.serveStdio(ctx)
	} else {
		err = s.serveHTTP(ctx)
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		sys.Tell(context.Cause(ctx))
		return exitTimedOut
	case ctx.Err() != nil:
		return program.ExitOK // a signal is an orderly end
	}
	return sys.Exit(err)
}
