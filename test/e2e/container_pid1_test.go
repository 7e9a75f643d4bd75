package e2e

import (
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

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
