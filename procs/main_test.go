package procs

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/execagent/execagent/test/rig"
)

// TestMain is also the main function of the processes that tests start from
// this binary. The first argument says which.
func TestMain(m *testing.M) {
	role := ""
	if len(os.Args) > 1 {
		role = os.Args[1]
	}
	var err error
	switch role {
	case "guard":
		err = GuardMain(os.Stdin, os.Stdout)
	case "guarded-agent":
		err = guardedAgent(testGuard(), sh("sleep 61 & sleep 62 & (trap '' HUP TERM INT; sleep 63) & echo $$ ready; wait"), false)
	case "unguarded-agent":
		err = guardedAgent(nil, sh("trap '' HUP TERM INT; echo $$ ready; exec sleep 64"), false)
	case "guarded-jobs":
		err = guardedAgent(testGuard(), []string{selfPath, "jobs", os.Args[2]}, os.Args[2] == "exit")
	case "jobs":
		err = startJobs(os.Args[2])
	case "reaping-agent":
		err = rig.Outside(context.Background(), func(t rig.T) { reapingAgent(t, os.Args[2]) })
	case "abandoning-agent":
		err = rig.Outside(context.Background(), abandoningAgent)
	case "zombies":
		err = rig.Outside(context.Background(), func(t rig.T) { endWithZombies(t, os.Args[2]) })
	case "cgroup":
		err = rig.Outside(context.Background(), cgroupRoles[os.Args[2]])
	default:
		if err = CloseOnExec(); err != nil {
			break
		}
		if signal.Ignored(syscall.SIGINT) { // as in the background of a shell; children would ignore it too
			signal.Notify(make(chan os.Signal, 1), syscall.SIGINT)
		}
		goleak.VerifyTestMain(m)
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// self is a command that runs this binary in a role of TestMain.
func self(role ...string) *exec.Cmd { return exec.Command(selfPath, role...) }

// firstLine starts a command and returns the first line of its output.
func firstLine(t rig.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.StdoutPipe()
	rig.Must(t, err)
	rig.Must(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	rig.Must(t, err)
	return line
}

// output runs a command that succeeds, and returns what it prints.
func output(t rig.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// selfPath is this binary, also if its file has been replaced since.
const selfPath = "/proc/self/exe"
