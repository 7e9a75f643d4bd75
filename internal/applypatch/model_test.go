package applypatch

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/test/rig"
)

// TestWholeIsInOrder: whatever a patch does with some files and links to them, Whole leaves what
// inOrder leaves, and nothing changed where inOrder fails. Where a link leads to nothing, Whole may
// refuse what inOrder does. In push, a quarter of the checks make their files.
func TestWholeIsInOrder(t *testing.T) {
	t.Parallel()
	begin := func(t *rapid.T) string {
		dir, err := os.MkdirTemp("", "")
		rig.Must(t, err)
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		dir, err = filepath.EvalSymlinks(dir)
		rig.Must(t, err)
		for name, mode := range map[string]os.FileMode{"a": 0o755, "b": 0o644, "d/c": 0o644} {
			path := filepath.Join(dir, name)
			rig.Must(t, os.MkdirAll(filepath.Dir(path), 0o777))
			rig.Must(t, os.WriteFile(path, []byte(name+"\n"), mode))
		}
		for name, to := range map[string]string{"la": "a", "lla": "la", "ld": "d", "lc": "ld/c"} {
			rig.Must(t, os.Symlink(to, filepath.Join(dir, name)))
		}
		return dir
	}
	names := []string{"a", "b", "d/c", "la", "lla", "ld/c", "lc", "d", "ld", "new", "d/new", "ld/new", "n/m"}
	refused, stricter := 0, 0
	rapid.Check(t, func(r *rapid.T) {
		if !rapid.SampledFrom([]bool{true, false, false, false}).Draw(r, "in push") && !rig.Runs(rig.Merge) {
			return
		}
		var b strings.Builder
		b.WriteString(beginMark + "\n")
		for n := range rapid.IntRange(1, 6).Draw(r, "hunks") {
			name := rapid.SampledFrom(names).Draw(r, "name")
			switch rapid.IntRange(0, 3).Draw(r, "kind") {
			case 0:
				fmt.Fprintf(&b, "%s%s\n+added %d\n", addMark, name, n)
			case 1:
				fmt.Fprintf(&b, "%s%s\n", delMark, name)
			case 2:
				fmt.Fprintf(&b, "%s%s\n@@\n+line %d\n", updMark, name, n)
			case 3:
				fmt.Fprintf(&b, "%s%s\n%s%s\n@@\n+line %d\n", updMark, name, moveMark, rapid.SampledFrom(names).Draw(r, "to"), n)
			}
		}
		b.WriteString(endMark)
		p, err := Parse(b.String())
		rig.Must(r, err)
		one, other := begin(r), begin(r)
		before := look(t, one)
		var diff strings.Builder
		_, previewErr := (&Target{Files: fsops.Host{}, Dir: one}).Preview(t.Context(), p, &diff, 1<<20)
		rig.Same(r, "the preview has changed files", before, look(t, one))
		_, orderErr := (&Target{Files: fsops.Host{}, Dir: one}).inOrder(t.Context(), p)
		_, wholeErr := (&Target{Files: fsops.Host{}, Dir: other}).Whole(t.Context(), p)
		want := look(t, one)
		if wholeErr != nil {
			want = before
			refused++
			if orderErr == nil {
				stricter++
			}
		}
		rig.Same(r, fmt.Sprintf("%s\nin order %v, as a whole %v", b.String(), orderErr, wholeErr), want, look(t, other))
		if orderErr != nil && wholeErr == nil {
			r.Errorf("%s\nin order %v", b.String(), orderErr)
		}
		if (previewErr == nil) != (orderErr == nil) && wholeErr == nil {
			r.Errorf("%s\npreview %v, in order %v", b.String(), previewErr, orderErr)
		}
	})
	t.Logf("%d patches were refused, %d of them for links alone", refused, stricter)
}
