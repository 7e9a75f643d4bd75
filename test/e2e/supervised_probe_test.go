package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestSupervisedProbe: where a supervisor could not trace its commands, or have a listener, the
// doctor says so and what to do, and a command that needs one is refused.
func TestSupervisedProbe(t *testing.T) {
	t.Parallel()
	launcher := filepath.Join(t.TempDir(), "nouserns")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", launcher, "../rig/nouserns")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, tt := range []struct{ flag, failed, remedy string }{
		{"-no-trace", "tracing the caller: ptrace: operation not permitted", "allows process_vm_readv and ptrace"},
		{"-no-listener", "device or resource busy", "no other program holds a seccomp listener"},
	} {
		t.Run(tt.flag, func(t *testing.T) {
			t.Parallel()
			run := func(argv ...string) (string, string) {
				cmd := rig.Leash(exec.CommandContext(t.Context(), launcher, append([]string{tt.flag, "--", rig.Agent(t)}, argv...)...))
				var complaints strings.Builder
				cmd.Dir, cmd.Stderr = "/", &complaints
				out, _ := cmd.Output() // both end with an error, which is in the output
				return string(out), complaints.String()
			}
			out, complaints := run("doctor", "--json")
			var found struct {
				Layers []struct {
					Name, Error, Remedy string
					OK                  bool
				}
			}
			if err := json.Unmarshal([]byte(out), &found); err != nil {
				t.Fatalf("%v: %s%s", err, out, complaints)
			}
			seen := false
			for _, l := range found.Layers {
				if l.Name != "supervised" {
					continue
				}
				seen = true
				if l.OK || !strings.Contains(l.Error, tt.failed) || !strings.Contains(l.Remedy, tt.remedy) {
					t.Errorf("%+v", l)
				}
			}
			if !seen {
				t.Error("the doctor does not list the layer")
			}
			out, complaints = run("sandbox", "--workspace", t.TempDir(), "--", "echo", "it runs")
			if strings.Contains(out, "it runs") || !strings.Contains(complaints, "sandbox: ") {
				t.Errorf("it is not refused: %s%s", out, complaints)
			}
		})
	}
}
