package helper

import (
	"fmt"
	"os"

	"github.com/execagent/execagent/helper/confine"
	"github.com/execagent/execagent/helper/files"
	"github.com/execagent/execagent/helper/probe"
	"github.com/execagent/execagent/procs"
)

// GuardArg as the only argument makes this program the guard of an agent: it
// outlives the agent to kill what the agent leaves behind. argv[0] stays what
// it was, so that the program can still be told by its name.
const GuardArg = "process-guard"

// modes are the hidden first arguments and what they make of this process.
var modes = []struct {
	arg   string
	alone bool // with another argument after it, it is no mode
	main  func() (code int)
}{
	{arg: confine.Arg, main: confine.Main},
	{arg: files.Arg, main: files.Main},
	{arg: probe.Arg, main: probe.Main},
	{arg: GuardArg, alone: true, main: guard},
}

// Dispatch does what a hidden first argument asks for, to its end, and returns
// the exit code. Without one ok is false, and nothing has been done. A program
// that confines, and the tests of one, call it before anything else: the modes
// rely on a process in which nothing has happened yet. The args are os.Args, in
// which the modes look for more.
func Dispatch(args []string) (code int, ok bool) {
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

// guard is the process that a [procs.Guard] starts.
func guard() int {
	if err := procs.GuardMain(os.Stdin, os.Stdout); err != nil {
		// Where this cannot be written there is nowhere to say so.
		_, _ = fmt.Fprintln(os.Stderr, "agent:", err)
		return 1
	}
	return 0
}
