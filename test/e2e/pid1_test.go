package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// kin is what /proc/PID/stat says about a process.
type kin struct {
	pid     int
	command string
	state   string
}

// children are the children of a process that run a program, zombies too; "": all of them.
func children(t *testing.T, parent int, program string) (found []kin) {
	t.Helper()
	for _, path := range rig.Value(filepath.Glob("/proc/[0-9]*/stat")) {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended meanwhile
		}
		// PID (COMMAND) STATE PPID ..., proc_pid_stat(5)
		head, rest, _ := strings.Cut(string(stat), " (")
		end := strings.LastIndex(rest, ") ")
		if fields := strings.Fields(rest[end+2:]); fields[1] == strconv.Itoa(parent) && (program == "" || rest[:end] == program) {
			found = append(found, kin{rig.Value(strconv.Atoi(head)), rest[:end], fields[0]})
		}
	}
	return found
}

// TestPID1 runs the agent as PID 1, as in a container. It adopts processes that have lost their
// parent and left their group, reaps them, and takes everything with it when it ends.
func TestPID1(t *testing.T) {
	t.Parallel()
	enter := []string{"unshare", "-pf", "--mount-proc", "--kill-child"}
	if out, err := rig.Command(t, enter[0], append(enter[1:], "true")...).CombinedOutput(); err != nil {
		t.Skipf("a PID namespace cannot be made here: %v: %s", err, out)
	}
	mark := fmt.Sprintf("pid1-%d", os.Getpid())
	a := startProgram(t, mark, append(enter, rig.Agent(t), "--listen", "stdio")...)
	a.occupy(t)
	agents := children(t, a.Process.Pid, "")
	if len(agents) != 1 {
		t.Fatalf("unshare has the children %v, want one", agents)
	}
	agent := agents[0].pid

	const orphans = `setsid sleep 301 </dev/null >/dev/null 2>&1 & setsid sleep 302 </dev/null >/dev/null 2>&1 & exit 0`
	answer := a.ask(t, fmt.Sprintf(`{"id":9,"method":"process/start","params":{"processId":"orphans","argv":["sh","-c",%q],`+
		`"cwd":"file:///","env":{"PATH":%q,"E2E_MARK":%q},"tty":false}}`, orphans, os.Getenv("PATH"), mark))
	for !strings.Contains(answer, `"id":9`) { // the orphan of occupy has lost its parent by now, and the agent tells
		answer = a.line(t)
	}
	has(t, answer, "sandboxType")
	sleepers := func() []kin { return children(t, agent, "sleep") }
	// A third one is the orphan that occupy leaves.
	rig.Until(t, "the agent has adopted three sleepers", func() bool { return len(sleepers()) == 3 })
	rig.Must(t, syscall.Kill(sleepers()[0].pid, syscall.SIGKILL))
	rig.Until(t, "the agent has reaped one of them", func() bool { return len(sleepers()) == 2 })

	rig.Must(t, syscall.Kill(agent, syscall.SIGTERM))
	rig.Is(t, a.ended(t), "exit status 0", "the agent ends with")
	noneLeft(t, mark)
}
