package snapshot_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/agent/internal/snapshot"
	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/test/rig"
)

// startup are the shells, with a startup file of each.
var startup = map[string]string{"sh": ".profile", "bash": ".bash_profile", "zsh": ".zprofile"}

// TestHostile: no startup file of any shell makes a capture last, print or keep more than it may.
func TestHostile(t *testing.T) {
	t.Parallel()
	for name, file := range startup {
		sh := shell(t, name)
		for _, row := range rig.Rows(t, "testdata/startup.txt", "hostile", 2) {
			t.Run(name+" "+row[0], func(t *testing.T) {
				t.Parallel()
				rig.Is(t, rig.Err(snapshot.Capture(t.Context(), sh, home(t, map[string]string{file: row[1] + "\n"}), start)) != nil, true, "no state")
			})
		}
	}
}

// TestWhole: a state that is taken has all that the startup file has exported and nothing
// else, and a shell that restores it prints nothing of its own.
func TestWhole(t *testing.T) {
	t.Parallel()
	for name, file := range startup {
		sh := shell(t, name)
		for _, row := range rig.Rows(t, "testdata/startup.txt", "whole", 2) {
			text, shells := row[0], row[1]
			t.Run(name+" "+text, func(t *testing.T) {
				t.Parallel()
				spec := home(t, map[string]string{file: "export A=1 LAST='a\nb'\n" + text + "\n"})
				state, err := snapshot.Capture(t.Context(), sh, spec, start)
				if err != nil {
					if slices.Contains(strings.Fields(shells), name) {
						t.Error(err)
					}
					return
				}
				if strings.Contains(text, "set -x") {
					return // what a command prints is traced then
				}
				rig.Is(t, restored(t, state, sh, spec, `\printf %s "$A$LAST ${B-} $HOME"`, nil, nil), "1a\nb  "+spec.Dir, "the result")
			})
		}
	}
}

// TestNothingLeft: what a startup file has left in the group of its shell ends with the capture,
// whether there is a state or not.
func TestNothingLeft(t *testing.T) {
	t.Parallel()
	for name, file := range startup {
		sh := shell(t, name)
		for what, text := range map[string]string{
			"state": "", "no state": "exit 1\n", "too much": "yes\n",
		} {
			t.Run(name+" "+what, func(t *testing.T) {
				t.Parallel()
				spec := home(t, map[string]string{file: "trap '' HUP TERM INT\n(sleep 1000 & echo $! > ~/pid)\n(while :; do sleep 1000; done) &\n" + text})
				_, err := snapshot.Capture(t.Context(), sh, spec, start)
				rig.Is(t, err == nil, text == "", "there is a state, %v", err)
				pid := rig.Value(os.ReadFile(filepath.Join(spec.Dir, "pid")))
				rig.Until(t, "what the startup file has left ends", func() bool { return !running(strings.TrimSpace(string(pid))) })
			})
		}
	}
}

// running reports whether a process is there, and no zombie.
func running(pid string) bool {
	stat, err := linux.ReadStat("/proc/" + pid)
	return err == nil && !stat.Dead()
}

// TestLoops: a startup file that does not end is ended with the capture.
func TestLoops(t *testing.T) {
	t.Parallel()
	for name, file := range startup {
		sh := shell(t, name)
		for what, text := range map[string]string{"loop": "while :; do :; done", "stop": "kill -STOP $$", "another shell": "exec sh -c 'while :; do sleep 1000; done'"} {
			t.Run(name+" "+what, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithCancel(t.Context())
				spec := home(t, map[string]string{file: text + "\n"})
				_, err := snapshot.Capture(ctx, sh, spec, func(spec procs.Spec) (*procs.Process, []string, func(), error) {
					cancel() // as the end of the time would
					return start(spec)
				})
				rig.Is(t, err, context.Canceled, "")
			})
		}
	}
}
