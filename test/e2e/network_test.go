package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestNetworkSupervised: programs that serve and connect print under a supervisor what they print
// unconfined, where everything can be read and where a path is denied. An ordinary user's do too.
func TestNetworkSupervised(t *testing.T) {
	rig.Tier(t, rig.Merge)
	t.Parallel()
	tools := rig.Public(t)
	launcher, agent := rig.Launcher(t, tools), filepath.Join(tools, "agent")
	install(t, map[string]string{agent: rig.Agent(t)})
	users := map[string][]string{"own user": {launcher, "--"}}
	if os.Getuid() == 0 {
		users["ordinary user"] = []string{launcher, "-uid", "1000", "--"}
	}
	for name, argv := range map[string][]string{
		"python3": {"python3", "program.py"},
		"node":    {"node", "program.js"},
		"curl":    {"sh", "-c", curlScript},
	} {
		if _, err := exec.LookPath("/usr/bin/" + name); err != nil {
			t.Log(err)
			continue
		}
		for user, launch := range users {
			t.Run(name+"/"+user, func(t *testing.T) {
				t.Parallel()
				unconfined := runNetworkProgram(t, launch, argv, func(string) []string { return nil })
				for level, sandbox := range map[string]func(work string) []string{
					"W": func(work string) []string {
						return []string{agent, "sandbox", "--workspace", work, "--network", "on", "--"}
					},
					"S": func(work string) []string { return []string{agent, "sandbox", "--policy", work + "/policy.json", "--"} },
				} {
					rig.Is(t, runNetworkProgram(t, launch, argv, sandbox), unconfined, "level %s", level)
				}
			})
		}
	}
}

// runNetworkProgram runs a program in a workspace of its own, with launch and what sandbox returns
// before its command line, and returns what it has printed.
func runNetworkProgram(t *testing.T, launch, argv []string, sandbox func(work string) []string) string {
	t.Helper()
	work := networkWorkspace(t)
	argv = slices.Concat(launch, sandbox(work), argv)
	cmd := rig.Leash(rig.Command(t, argv[0], argv[1:]...))
	cmd.Dir = work
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + work, "TMPDIR=" + work, "PYTHONDONTWRITEBYTECODE=1"}
	said := says(t, cmd)
	lacks(t, said, "exit ")
	return said
}

const curlScript = `: >log; python3 -u -m http.server --bind 127.0.0.1 0 >>log 2>&1 & pid=$!
until port=$(sed -n 's/.* port \([0-9]*\) .*/\1/p' log) && [ "$port" ]; do sleep 0.05; done
curl -sS http://127.0.0.1:$port/file
kill $pid`

// networkWorkspace returns a new directory that everybody may write, with the programs and with a
// policy that lets it be written and denies a path in it.
func networkWorkspace(t *testing.T) string {
	t.Helper()
	work := rig.Public(t)
	rig.Must(t, os.CopyFS(work, os.DirFS("testdata/network")), os.Mkdir(work+"/vault", 0o700), os.WriteFile(work+"/file", []byte("content\n"), 0o644))
	policy := policyIn(work, policyFile("enabled", readRoot, writeProject, strings.Replace(denySecret, "secret", "vault", 1)))
	rig.Must(t, os.WriteFile(work+"/policy.json", []byte(policy), 0o644))
	return work
}
