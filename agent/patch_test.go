package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/applypatch"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestPatchLimits: at a limit a patch is applied, one beyond it is refused and changes nothing.
func TestPatchLimits(t *testing.T) {
	t.Parallel()
	const begin, end = "*** Begin Patch\n", "*** End Patch"
	add := func(name string, size int) string {
		return "*** Add File: " + name + "\n+" + strings.Repeat("x", size) + "\n"
	}
	frame := len(begin) + len(add("a", 0)) + len(end)
	const patch, diff = 16 << 20, 16 << 20
	files := 1024
	if !rig.Runs(rig.Merge) {
		files = 2 // each is written through to the disk
	}
	for _, tt := range []struct {
		name, patch string
		dryRun      bool
		want        string // "" if it is applied
	}{
		{"bytes", begin + add("a", patch-frame) + end, false, ""},
		{"a byte more", begin + add("a", patch-frame+1) + end, false, "patch of 16777217 bytes is longer than 16777216"},
		{"files", begin + strings.Repeat(add("a", 1), files) + end, false, ""},
		{"a file more", begin + strings.Repeat(add("a", 1), 1025) + end, false, "patch names 1025 files, more than 1024"},
		{"diff", begin + "*** Delete File: large\n" + end, true, ""},
		{"a longer diff", begin + "*** Delete File: large\n" + add("b", 200) + end, true, "the diff of the patch is too long"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			rig.Must(t, os.WriteFile(filepath.Join(dir, "large"), []byte(strings.Repeat("y", diff-100)), 0o600))
			target := &applypatch.Target{Files: fsops.Host{}, Dir: dir}
			r, err := patchFiles(t.Context(), target, &protocol.ApplyPatchParams{Patch: tt.patch, DryRun: tt.dryRun})
			if tt.want == "" {
				if err != nil || len(r.Changes) == 0 || r.Output == "" || (r.Diff != nil) != tt.dryRun {
					t.Errorf("%d changes, output %.100q, %v", len(r.Changes), r.Output, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || len(r.Changes) != 0 {
				t.Errorf("%d changes, %v, want %q", len(r.Changes), err, tt.want)
			}
			entries, err := os.ReadDir(dir)
			rig.Is(t, err == nil && len(entries) == 1, true, "%v is left, %v", entries, err)
		})
	}
}
