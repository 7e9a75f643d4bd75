// Package sandboxtest has what the tests of the sandbox share. Linux only.
//
// A permanent change of a process (a filter, a ruleset, a namespace) is tested in a
// child: the test binary again, with the name of a registered func as its argument.
// TestMain of the package calls [ChildMain]; a child is declared beside its test:
//
//	var _ = RegisterChild("mounts/read-only", func(t rig.T, args []string) { ... })
//
// The test runs it with RunChild(t, "mounts/read-only", args...), or with
// [ChildCommand] to set attributes (namespaces, credentials) or to look at how it
// ended. The func runs on the main goroutine of a process in which nothing else
// happens; what fails in it is printed and makes the test fail.
// RegisterChild is called before ChildMain; RunChild and ChildCommand may run at once.
//
// [Main] runs tests in surroundings that are the same on every machine. [Eventually]
// waits for an expected event, and a [TB] is a testing.TB for test functions in
// processes that are not tests.
package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// ChildArg marks a process as a child; the name follows it.
const ChildArg = "sandbox-test-child"

// children has the registered funcs by name.
var children = map[string]func(t rig.T, args []string){}

// RegisterChild makes a func known to RunChild and ChildCommand. Names look like paths:
// area/case. It panics if the name is taken. The result means nothing: it lets a
// package-level variable call RegisterChild.
func RegisterChild(name string, run func(t rig.T, args []string)) struct{} {
	if _, taken := children[name]; taken {
		panic("two children are called " + name)
	}
	children[name] = run
	return struct{}{}
}

// ChildMain is [Main] for a package with children: in a child it runs the registered func. It does
// not return.
func ChildMain(m *testing.M, prepare ...func()) {
	if len(os.Args) < 3 || os.Args[1] != ChildArg {
		Main(m, prepare...)
	}
	run, ok := children[os.Args[2]]
	if !ok {
		fmt.Fprintf(os.Stderr, "no child is called %q\n", os.Args[2])
		os.Exit(2)
	}
	if err := rig.Outside(context.Background(), func(t rig.T) { run(t, os.Args[3:]) }); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// ChildCommand returns the command that runs the registered func; the caller starts
// it. The process is killed when the test ends.
func ChildCommand(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", append([]string{ChildArg, name}, args...)...)
	// GORACE: the race detector would have every child sleep for a second at its
	// end. GODEBUG: the runtime would hold files of its cgroup open.
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", "GODEBUG=containermaxprocs=0")
	return cmd
}

// RunChild runs the registered func in a fresh process and returns what it
// printed on stdout. The test fails at once if something failed in the func, or
// the process ended in any other way than by its return.
func RunChild(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := ChildCommand(t, name, args...).Output()
	if err != nil {
		var stderr string
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			stderr = string(exit.Stderr)
		}
		t.Fatalf("child %s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, stderr)
	}
	return string(out)
}
