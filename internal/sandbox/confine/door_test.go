package confine

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/sandbox/placeholder"
	"github.com/execagent/execagent/internal/sandbox/resolve"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// TestDoorFailsClosed: whatever step fails, nothing can be started, and no later
// step is taken.
func TestDoorFailsClosed(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	writing := sandbox.Profile{
		Entries: []sandbox.Entry{
			{Place: sandbox.PlaceRoot, Access: sandbox.Read},
			{Place: sandbox.PlaceProjectRoots, Access: sandbox.Write},
		},
		Cwd: root, WorkspaceRoots: []string{root},
	}
	no := errors.New("no")
	var steps []string
	door := func(host sandbox.Host, refuses, hostErr error) *Door {
		steps = nil
		return &Door{
			Refuses: func(*sandbox.Policy) error { steps = append(steps, "refuses"); return refuses },
			Host:    func() (sandbox.Host, error) { steps = append(steps, "host"); return host, hostErr },
			Served:  &resolve.Served{},
			Placeholders: func() (*placeholder.Placeholders, error) {
				steps = append(steps, "placeholders")
				return nil, no
			},
		}
	}
	all := sandbox.Host{Layers: sandbox.LayersOf(sandbox.AllLayers()...), Landlock: 7}
	for _, tt := range []struct {
		name  string
		door  func() *Door
		steps string
		want  string // is in the error
	}{
		{"refused here", func() *Door { return door(all, no, nil) }, "refuses", "no"},
		{"host not examined", func() *Door { return door(all, nil, no) }, "refuses host", "no"},
		{"nothing enforceable", func() *Door { return door(sandbox.Host{}, nil, nil) }, "refuses host", "userns is missing"},
		{"nothing to hold with", func() *Door { return door(all, nil, nil) }, "refuses host placeholders", "no"},
	} {
		held, err := tt.door().Enter(writing)
		if err == nil || held != nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, %v, want %q", tt.name, held, err, tt.want)
		}
		rig.Is(t, strings.Join(steps, " "), tt.steps, "%s: steps", tt.name)
	}

	// A policy that restricts nothing needs none of the steps.
	held, err := door(sandbox.Host{}, no, no).Enter(sandbox.Profile{Kind: sandbox.Disabled})
	if err != nil || !held.Unconfined() || held.Layers == nil || len(held.Layers)+len(steps) > 0 {
		t.Errorf("disabled: %+v, %v, steps %q", held, err, steps)
	}
	held.Release()
}

// TestRefusedRunsNothing: in the place of a refused command an init is started
// that only says why.
func TestRefusedRunsNothing(t *testing.T) {
	t.Parallel()
	held := Refused(errors.New("sandbox: not here"))
	rig.Is(t, held.Unconfined() || held.Layers == nil, false, "%+v", held)
	program := procs.Program{Argv: []string{"touch", filepath.Join(t.TempDir(), "ran")}, Dir: "/"}
	stage := rig.Value(held.Stage(program))
	if slices.Contains(stage.Argv, "touch") || !slices.Contains(stage.Argv, refusal) {
		t.Errorf("%q", stage.Argv)
	}
	if code, err := held.Run(program, [3]*os.File{}, nil); err == nil || code != 0 {
		t.Errorf("run: %d, %v", code, err)
	}
	held.Release()
}
