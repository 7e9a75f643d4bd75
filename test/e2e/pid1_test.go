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

// children are the children of a process, zombies too.
func children(t *testing.T, parent int) []kin {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	rig.Must(t, err)
	var found []kin
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended meanwhile
		}
		// PID (COMMAND) STATE PPID ..., proc_pid_stat(5)
		head, rest, _ := strings.Cut(string(stat), " (")
		end := strings.LastIndex(rest, ") ")
		fields := strings.Fields(rest[end+2:])
		if fields[1] != strconv.Itoa(parent) {
			continue
		}
		pid, err := strconv.Atoi(head)
		rig.Must(t, err)
		found = append(found, kin{pid, rest[:end], fields[0]})
	}
	return found
}

// sleepers returns the children that run sleep(1).
func sleepers(t *testing.T, parent int) []kin {
	t.Helper()
	var found []kin
	for _, k := range children(t, parent) {
		if k.command == "sleep" {
			found = append(found, k)
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
	agents := children(t, a.Process.Pid)
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
	if !strings.Contains(answer, "sandboxType") {
		t.Fatal(answer)
	}
	// A third one is the orphan that occupy leaves.
	eventually(t, patience, func() error {
		if found := sleepers(t, agent); len(found) != 3 {
			return fmt.Errorf("the agent has adopted %v, want three sleepers", found)
		}
		return nil
	})
	adopted := sleepers(t, agent)
	if len(adopted) == 0 {
		t.FailNow()
	}
	rig.Must(t, syscall.Kill(adopted[0].pid, syscall.SIGKILL))
	eventually(t, patience, func() error {
		if found := sleepers(t, agent); len(found) != 2 {
			return fmt.Errorf("the agent has not reaped one of %v", found)
		}
		return nil
	})

	rig.Must(t, syscall.Kill(agent, syscall.SIGTERM))
	rig.Is(t, a.ended(t), "exit status 0", "the agent ends with")
	noneLeft(t, mark)
}
