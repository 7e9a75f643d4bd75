// Command agent executes processes, file operations and HTTP requests for
// clients that speak the protocol of codex exec-server, and runs single
// commands through the same protocol. See agent --help. Linux only.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/execagent/execagent/helper"
	"github.com/execagent/execagent/helper/confine"
	"github.com/execagent/execagent/internal/secretenv"
	"github.com/execagent/execagent/procs"
)

// Exit codes of the agent itself. exec and sandbox end with the code of their
// command, and have more codes of their own.
const (
	exitOK      = 0
	exitFailure = 1 // starting up or serving
	exitUsage   = 2
)

func main() {
	if code, ok := helper.Dispatch(os.Args); ok {
		os.Exit(code)
	}
	if err := procs.CloseOnExec(); err != nil {
		complain(os.Stderr, fmt.Errorf("commands inherit the descriptors of this process: %w", err))
	}
	// Commands do not get the variable exitOnStdinClose, but it is no secret, and
	// the parser of the flags has yet to read it. So it stays in this process.
	environ, keys, err := secretenv.Take(procs.Denied, exitOnStdinClose)
	if err != nil {
		// The keys stay where the kernel put them, but no command inherits them.
		// That is worth a warning, and no reason to run nothing.
		complain(os.Stderr, fmt.Errorf("keys stay readable in /proc/%d/environ: %w", os.Getpid(), err))
	}
	os.Exit(run(system{
		args:    os.Args[1:],
		environ: environ,
		keys:    keys,
		stdin:   os.Stdin,
		stdout:  os.Stdout,
		stderr:  os.Stderr,
	}))
}

// system is what the program is started with.
type system struct {
	args    []string // without the program's name
	environ []string
	keys    secretenv.Secrets // variables that no command inherits
	stdin   *os.File
	stdout  *os.File
	stderr  *os.File
}

// lookup finds a variable of the environment that the program was started
// with. If a name is there more than once, the last entry counts.
func (s system) lookup(name string) (value string, ok bool) {
	for _, entry := range s.environ {
		if n, v, _ := strings.Cut(entry, "="); n == name {
			value, ok = v, true
		}
	}
	if v, found := s.keys.Lookup(name); found {
		return v, true
	}
	return value, ok
}

// run parses the command line and does what it says. The result is the exit
// code.
func run(sys system) int {
	args := sys.args
	if len(args) > 1 && args[0] == "exec-server" && args[1] == "forward" {
		args = args[1:] // the reference has forward below exec-server
	}
	flags, err := parse(args, sys.stdout, sys.stderr)
	if _, ok := errors.AsType[usageError](err); ok {
		complain(sys.stderr, err)
		complain(sys.stderr, "see agent --help, for the options of the server agent exec-server --help")
		return exitUsage
	}
	if err != nil {
		return sys.fail(err)
	}
	switch flags := flags.(type) {
	case *forwardFlags:
		return runForward(sys, flags)
	case *execFlags:
		return runExec(sys, flags)
	case *sandboxFlags:
		return runSandbox(sys, flags)
	case *doctorFlags:
		return runDoctor(sys, flags)
	case *completionFlags:
		return runCompletion(sys, flags)
	case *versionFlags:
		return runVersion(sys, flags)
	case *serverFlags:
		return runServer(sys, flags)
	}
	panic(fmt.Sprintf("a command with the flags %T, which nothing runs", flags))
}

// complain writes one line about what went wrong: the name of the program, and
// what. No line holds a secret.
func complain(w io.Writer, what any) {
	// If standard error cannot be written to, nothing else can say so.
	_, _ = fmt.Fprintf(w, "agent: %v\n", what)
}

// fail complains, and returns the exit code for that.
func (s system) fail(err error) int {
	complain(s.stderr, err)
	return exitFailure
}

// newGuard returns the guard, which kills the commands of this agent when the
// agent itself is killed, and the reaper, for the orphans of which the agent is the
// parent: all of them if it is PID 1, and those of confined commands. The caller
// closes the guard, then the reaper.
func newGuard() (*procs.Guard, *procs.Reaper) {
	guard := &procs.Guard{
		Path: "/proc/self/exe", Argv: []string{os.Args[0], helper.GuardArg},
		Reaper: procs.NewReaper(confine.Abandoned),
	}
	return guard, guard.Reaper
}
