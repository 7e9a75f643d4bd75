package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// eachMeans runs a test with namespaces and where nobody can make any, for which launch comes
// before the name of a program.
func eachMeans(t *testing.T, test func(t *testing.T, launch []string)) {
	t.Helper()
	t.Run("namespaces", func(t *testing.T) {
		t.Parallel()
		test(t, nil)
	})
	t.Run("supervised", func(t *testing.T) {
		rig.Tier(t, rig.Merge)
		t.Parallel()
		test(t, []string{rig.Launcher(t, t.TempDir()), "--"})
	})
}

// eachSandbox runs a test for each way in which agent sandbox starts a command. sandbox returns
// a command of it with these arguments.
func eachSandbox(t *testing.T, test func(t *testing.T, sandbox func(args ...string) *exec.Cmd)) {
	t.Helper()
	run := func(t *testing.T, launch []string, flags ...string) {
		t.Helper()
		test(t, func(args ...string) *exec.Cmd {
			all := append(append([]string{}, launch...), rig.Agent(t), "sandbox")
			all = append(append(all, flags...), args...)
			return rig.Command(t, all[0], all[1:]...)
		})
	}
	eachMeans(t, func(t *testing.T, launch []string) { run(t, launch) })
	t.Run("none", func(t *testing.T) {
		rig.Tier(t, rig.Merge)
		t.Parallel()
		everything := filepath.Join(t.TempDir(), "policy.json")
		rig.Must(t, os.WriteFile(everything, []byte(`{"windowsSandboxLevel":"disabled","permissions":{"type":"disabled"}}`), 0o600))
		run(t, nil, "--policy", everything)
	})
}
