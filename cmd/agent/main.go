package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/execagent/execagent/cmd/agent/internal/local"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/helper"
	"github.com/execagent/execagent/internal/sandbox/confine"
	"github.com/execagent/execagent/internal/secretenv"
	"github.com/execagent/execagent/procs"
)

// exitOnStdinClose is the reference's variable for --exit-on-stdin-close.
const exitOnStdinClose = "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE"

func main() {
	if code, ok := helper.Dispatch(os.Args); ok {
		os.Exit(code)
	}
	if code, ok := local.SessionMain(os.Args); ok {
		os.Exit(code)
	}
	if err := procs.CloseOnExec(); err != nil {
		program.Complain(os.Stderr, fmt.Errorf("commands inherit the descriptors of this process: %w", err))
	}
	// Commands do not get the variable exitOnStdinClose, but it is no secret, and the parser of the
	// flags reads it later. So it stays in this process.
	environ, keys, err := secretenv.Take(procs.Denied, exitOnStdinClose)
	if err != nil {
		// The keys stay where the kernel put them, but no command inherits them. So a warning is
		// enough.
		program.Complain(os.Stderr, fmt.Errorf("keys stay readable in /proc/%d/environ: %w", os.Getpid(), err))
	}
	os.Exit(run(local.Job(program.System{
		Args:    os.Args[1:],
		Environ: environ,
		Keys:    keys,
		Stdin:   os.Stdin,
		Stdout:  os.Stdout,
		Stderr:  os.Stderr,
	})))
}

// run parses the command line, runs the command and returns its exit code.
func run(sys program.System) int {
	args := sys.Args
	if len(args) > 1 && args[0] == "exec-server" && args[1] == "forward" {
		args = args[1:] // the reference has forward below exec-server
	}
	command, overrides, err := parse(args)
	if wrong, ok := errors.AsType[*wrongLine](err); ok {
		program.Complain(sys.Stderr, wrong)
		program.Complain(sys.Stderr, wrong.help())
		return program.ExitUsage
	}
	if err != nil {
		return sys.Fail(err)
	}
	told := sys
	if server, ok := command.(*serverFlags); ok {
		told = server.loggingErrors(sys)
	}
	for _, override := range overrides {
		if !sys.Job { // its console has told it
			told.Tell(override)
		}
	}
	sys.Agent = agentOf(args)
	return command.run(sys)
}

// newGuard returns the guard, which kills the commands of this agent when the agent itself is
// killed. It also returns the reaper, which reaps orphans whose parent is the agent: all orphans if
// the agent is PID 1, and the orphans of confined commands. The caller closes the guard, then the
// reaper.
func newGuard() (*procs.Guard, *procs.Reaper) {
	guard := &procs.Guard{
		Path: "/proc/self/exe", Argv: []string{os.Args[0], helper.GuardArg},
		Reaper: procs.NewReaper(confine.Abandoned),
	}
	return guard, guard.Reaper
}
