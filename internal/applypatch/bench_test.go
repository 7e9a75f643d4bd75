package applypatch

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/test/rig"
)

// large writes a file of about size bytes, and returns a patch of a tenth of that which changes
// lines all over it. Lines of the patch have a wrong indentation if fuzzy is set, so that none is
// found as it is written.
func large(tb testing.TB, size int, fuzzy bool) (dir, patch string) {
	tb.Helper()
	dir = tb.TempDir()
	var file, b strings.Builder
	indent := "    "
	if fuzzy {
		indent = "\t"
	}
	b.WriteString("*** Begin Patch\n*** Update File: f\n")
	for n := 0; file.Len() < size; n++ {
		line := fmt.Sprintf("line %d of a file that is long", n)
		file.WriteString("    " + line + "\n")
		switch n % 32 {
		case 10:
			b.WriteString("@@\n " + indent + line + "\n")
		case 11:
			b.WriteString("-" + indent + line + "\n+    changed " + line + "\n")
		}
	}
	b.WriteString("*** End Patch\n")
	rig.Must(tb, os.WriteFile(filepath.Join(dir, "f"), []byte(file.String()), 0o644))
	return dir, b.String()
}

// apply reads and applies a patch.
func apply(ctx context.Context, dir, patch string) error {
	p, err := Parse(patch)
	if err != nil {
		return err
	}
	_, err = (&Target{Files: fsops.Host{}, Dir: dir}).Whole(ctx, p)
	return err
}

// BenchmarkLarge applies a patch of 10 MB to a file of 100 MB.
func BenchmarkLarge(b *testing.B) {
	for name, fuzzy := range map[string]bool{"exact": false, "fuzzy": true} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			dir, patch := large(b, 100_000_000, fuzzy)
			name := filepath.Join(dir, "f")
			old, err := os.ReadFile(name)
			rig.Must(b, err)
			b.SetBytes(int64(len(old)))
			b.ReportMetric(float64(len(patch))/1e6, "MB-of-patch")
			for b.Loop() {
				rig.Must(b, apply(b.Context(), dir, patch))
				b.StopTimer()
				rig.Must(b, os.WriteFile(name, old, 0o644))
				b.StartTimer()
			}
		})
	}
}

// TestMemory: all that is allocated for a patch, what is free again included, is less than three
// times the file.
func TestMemory(t *testing.T) {
	for _, fuzzy := range []bool{false, true} {
		dir, patch := large(t, 20_000_000, fuzzy)
		info, err := os.Stat(filepath.Join(dir, "f"))
		rig.Must(t, err)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		rig.Must(t, apply(t.Context(), dir, patch))
		runtime.ReadMemStats(&after)
		allocated := float64(after.TotalAlloc-before.TotalAlloc) / float64(info.Size())
		t.Logf("fuzzy %v: %d bytes of patch, %.2f times the file allocated", fuzzy, len(patch), allocated)
		rig.Is(t, allocated <= 3, true, "fuzzy %v: %.2f times the file is little", fuzzy, allocated)
	}
}
