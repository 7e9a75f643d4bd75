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

// children are the children of a process that run a program, zombies too; "": all of them.
func children(t *testing.T, parent int, program string) (pids []int) {
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
			pids = append(pids, rig.Value(strconv.Atoi(head)))
		}
	}
	return pids
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
	agent := agents[0]

	const orphans = `setsid sleep 301 </dev/null >/dev/null 2>&1 & setsid sleep 302 </dev/null >/dev/null 2>&1 & exit 0`
	answer := a.ask(t, fmt.Sprintf(`{"id":9,"method":"process/start","params":{"processId":"orphans","argv":["sh","-c",%q],`+
		`"cwd":"file:///","env":{"PATH":%q,"E2E_MARK":%q},"tty":false}}`, orphans, os.Getenv("PATH"), mark))
	for !strings.Contains(answer, `"id":9`) { // the orphan of occupy has lost its parent by now, and the agent tells
		answer = a.line(t)
	}
	has(t, answer, "sandboxType")
	sleepers := func() []int { return children(t, agent, "sleep") }
	// A third one is the orphan that occupy leaves.
	rig.Until(t, "the agent has adopted three sleepers", func() bool { return len(sleepers()) == 3 })
	rig.Must(t, syscall.Kill(sleepers()[0], syscall.SIGKILL))
	rig.Until(t, "the agent has reaped one of them", func() bool { return len(sleepers()) == 2 })

	rig.Must(t, syscall.Kill(agent, syscall.SIGTERM))
	rig.Is(t, a.ended(t), "exit status 0", "the agent ends with")
	noneLeft(t, mark)
}

// TestContainerPID1: an agent that is PID 1 of its container reaps what commands and their inits
// leave, so that nothing is left of many, neither daemons nor zombies.
func TestContainerPID1(t *testing.T) {
	t.Parallel()
	kinds := kindsNamed(t, "docker hardened")
	if rig.Runs(rig.Nightly) {
		kinds = kindsNamed(t, "docker hardened", "hardened", "docker root")
	}
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			c := newContainers(t)
			a := c.serve(t, kind)
			// The last process of each line has lost its parent: in a session of its own, after a
			// second fork, and with a parent that ends before it is looked for.
			const daemons = `setsid sleep 301 </dev/null >/dev/null 2>&1 &
(setsid sh -c 'sleep 302 & exit' </dev/null >/dev/null 2>&1 &)
(sh -c '(sleep 0.05; exit 3) & exit' </dev/null >/dev/null 2>&1 &)
echo started`
			policies := []string{policyFile("restricted", readRoot, writeProject), writePolicy, policyFile("enabled", readRoot, writeProject, denySecret)}
			for i := range 30 {
				rig.Is(t, a.runs(t, policies[i%len(policies)], daemons), "started\n", "command %d", i)
			}
			// The same with supervisors that are killed while their commands run.
			for i := 0; i < 6 && kind.means == supervisor; i++ {
				a.startScript(t, "", killSupervisor)
				lacks(t, a.output(t, a.startScript(t, policies[i%len(policies)], daemons+"; sleep 303; echo slept")), "slept")
			}
			rig.Until(t, "all have ended", func() bool { return len(a.processes(t)) == 0 })
			isEmpty(t, c.repo)
			a.stdin.Close()
			rig.Is(t, a.ended(t), "exit status 0", "the agent ends with")
		})
	}
}

// killSupervisor waits for a command that sleeps for 303 seconds, and kills its supervisor.
const killSupervisor = `named() { for p in /proc/[0-9]*; do case "$(tr '\0' ' ' 2>/dev/null <$p/cmdline)" in "$1"*) echo ${p#/proc/} ;; esac; done; }
until [ "$(named 'sleep 303')" ]; do sleep 0.05; done
kill -9 $(named '/agent sandbox-init inner')`

// processes are the processes of the agent's container that are neither the agent, with the guard
// that it always has, nor those that list them.
func (a *running) processes(t *testing.T) (found []string) {
	t.Helper()
	const list = `for p in /proc/[0-9]*; do [ $p = /proc/$$ ] || echo "$(grep State $p/status 2>/dev/null) $(tr '\0' ' ' 2>/dev/null <$p/cmdline)"; done`
	for line := range strings.Lines(a.runs(t, "", list)) {
		line = strings.Join(strings.Fields(line), " ")
		switch {
		case strings.HasSuffix(line, "/agent --listen stdio"), strings.HasSuffix(line, "/agent process-guard"):
		case line != "":
			found = append(found, line)
		}
	}
	return found
}
