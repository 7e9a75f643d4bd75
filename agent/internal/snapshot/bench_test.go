package snapshot_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/execagent/execagent/agent/internal/snapshot"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/test/rig"
)

// BenchmarkStart compares a shell that restores a state of 200 functions with one that has
// none, and with a login shell, whose startup file here only defines the functions.
func BenchmarkStart(b *testing.B) {
	path, err := exec.LookPath("bash")
	if err != nil {
		b.Skip(err)
	}
	dir := b.TempDir()
	profile := "export A=1\nfor i in $(seq 200); do eval \"f$i() { echo \\\"\\$1\\\" | tr a-z A-Z; if [ -n \\\"\\$2\\\" ]; then echo two; fi; }\"; done\n"
	rig.Must(b, os.WriteFile(dir+"/.bash_profile", []byte(profile), 0o600))
	spec := procs.Spec{Dir: dir, Env: []string{"HOME=" + dir, "PATH=/usr/bin:/bin"}}
	state := rig.Value(snapshot.Capture(b.Context(), snapshot.Shell{Name: "bash", Path: path}, spec, start))
	login := []string{path, "-lc", "true"}
	for _, way := range []string{"none", "restored", "login"} {
		b.Run(way, func(b *testing.B) {
			for b.Loop() {
				argv, env := []string{path, "-c", "true"}, spec.Env
				switch way {
				case "restored":
					argv, env, _ = state.Apply(login, nil, nil)
				case "login":
					argv = login
				}
				cmd := exec.CommandContext(b.Context(), argv[0], argv[1:]...)
				cmd.Dir, cmd.Env = dir, env
				if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
					b.Fatal(err, string(out))
				}
			}
		})
	}
}
