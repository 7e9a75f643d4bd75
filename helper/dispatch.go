package helper

import (
	"fmt"
	"os"

	"github.com/execagent/execagent/internal/applypatch"
	"github.com/execagent/execagent/internal/filecopy"
	"github.com/execagent/execagent/internal/sandbox/confine"
	"github.com/execagent/execagent/internal/sandbox/files"
	"github.com/execagent/execagent/internal/sandbox/hold"
	"github.com/execagent/execagent/internal/sandbox/probe"
	"github.com/execagent/execagent/procs"
)

// GuardArg as the only argument makes this program the guard of an agent, which
// outlives the agent to kill the processes that the agent leaves behind. The
// guard has the agent's argv[0], so that a list of processes shows which agent
// it belongs to.
const GuardArg = "process-guard"

// modes are the hidden first arguments, with the function that each runs.
var modes = []struct {
	arg   string
	alone bool // an argument after arg makes it an ordinary command line
	main  func() (code int)
}{
	{arg: confine.Arg, main: confine.Main},
	{arg: files.Arg, main: files.Main},
	{arg: probe.Arg, main: probe.Main},
	{arg: filecopy.ToolArg, main: filecopy.ToolMain},
	{arg: hold.Arg, main: hold.Main},
	{arg: GuardArg, alone: true, main: guard},
}

// Dispatch runs the mode that the first argument or the program's own name selects,
// to its end, and returns the exit code. If there is no mode, ok is false, and
// nothing has been done.
//
// A program that confines commands calls Dispatch before anything else, and so
// does the TestMain of its tests, because the modes rely on a process in which
// nothing has happened yet. args must be os.Args, because the modes look there
// for more arguments.
func Dispatch(args []string) (code int, ok bool) {
	if applypatch.IsTool(args) {
		return applypatch.Main(args, os.Stdin, os.Stdout, os.Stderr), true
	}
	if len(args) < 2 {
		return 0, false
	}
	for _, mode := range modes {
		if args[1] == mode.arg && (!mode.alone || len(args) == 2) {
			return mode.main(), true
		}
	}
	return 0, false
}

// guard is the main of the process that a [procs.Guard] starts.
func guard() int {
	if err := procs.GuardMain(os.Stdin, os.Stdout); err != nil {
		// If stderr cannot be written to, the error is lost.
		_, _ = fmt.Fprintln(os.Stderr, "agent:", err)
		return 1
	}
	return 0
}
