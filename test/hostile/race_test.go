package hostile

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestRaces: while a command changes what its calls are about, from one thread, calls of others
// reach nothing that they must not.
func TestRaces(t *testing.T) {
	t.Parallel()
	p := install(t)
	duration := fmt.Sprint(hunting(50, 1000, 10_000))
	kinds := []string{"path", "punched", "directory and link", "parent and link", "moved parent", "working directory", "descriptor", "deaths"}
	for i, uid := range users() {
		for j, level := range []struct {
			name    string
			mode    mode
			options []string
		}{
			{"W", workspace, nil},
			{"R", denying, []string{"--sandbox-metadata", "visible"}},
			{"S", denying, nil},
		} {
			t.Run(fmt.Sprint(level.name, " uid ", uid), func(t *testing.T) {
				t.Parallel()
				g := ground{base: openDir(t), uid: uid, mode: level.mode}
				g.fill(t)
				for k, kind := range kinds {
					if !inTurn(i + j + k) {
						continue
					}
					args := []string{"race", kind, g.base, duration}
					if kind == "deaths" {
						args = slices.Delete(args, 0, 1)
					}
					cmd := g.command(t, p, supervised, args...)
					at := slices.Index(cmd.Args, "--policy")
					cmd.Args = slices.Insert(cmd.Args, at, level.options...)
					g.race(t, kind, cmd)
				}
			})
		}
	}
}

// race runs a race, and looks at the ground afterwards.
func (g ground) race(t *testing.T, kind string, cmd *exec.Cmd) {
	t.Helper()
	rig.Must(t, g.reset())
	before, err := g.tree()
	rig.Must(t, err)
	out, err := cmd.CombinedOutput()
	t.Logf("%s: %s", kind, strings.TrimSpace(string(out)))
	if err != nil {
		t.Errorf("%s: %v", kind, err)
	}
	if g.mode == denying && strings.Contains(string(out), "SECRET") {
		t.Errorf("%s: it has read what it must not", kind)
	}
	g.unchanged(t, before)
}
