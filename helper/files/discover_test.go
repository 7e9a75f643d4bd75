package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/execagent/execagent/discovery"
	"github.com/execagent/execagent/sandbox/resolve"
)

// skills makes a root with as many skills of that size, and one that is denied.
func skills(t testing.TB, n, size int) string {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{
		".codex-plugin/plugin.json": `{"mcpServers":"./vault/m.json"}`, "vault/m.json": "secret", "vault/SKILL.md": "secret", "bad\xff": "",
	}
	for i := range n {
		files[fmt.Sprintf("%d/SKILL.md", i)] = strings.Repeat("x", size)
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestDiscover: a helper finds what a view would, also where that takes many packets, and
// several at once do not exhaust it.
func TestDiscover(t *testing.T) {
	t.Parallel()
	for _, size := range []int{10, discovery.MaxFile - 1} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			pool, children := testPool(t, Config{})
			dir := skills(t, 17, size)
			policy := workspace(t, dir)
			resolved, err := resolve.Policy(policy)
			if err != nil {
				t.Fatal(err)
			}
			defer resolved.Close()
			view, err := newView(resolved.Policy)
			if err != nil {
				t.Fatal(err)
			}
			defer view.Close()
			want, err := discovery.Read(t.Context(), view, dir)
			if err != nil {
				t.Fatal(err)
			}
			if want.Plugin == nil || want.Plugin.MCP != nil || len(want.Skills) < 15 || len(want.Warnings) < 3 {
				t.Errorf("%d skills, %+v, %+v", len(want.Skills), want.Plugin, want.Warnings)
			}
			files, err := pool.Files(t.Context(), policy)
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					got, err := files.Discover(t.Context(), dir)
					if err != nil {
						t.Error(err)
						return
					}
					if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.EquateErrors()); diff != "" {
						t.Errorf("in this process (-) and in a helper (+):\n%.2000s", diff)
					}
				})
			}
			wg.Wait()
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := files.Discover(ctx, dir); !errors.Is(err, context.Canceled) {
				t.Errorf("with a context that has ended: %v", err)
			}
			pool.Close()
			children.check(t, 1)
		})
	}
}

// BenchmarkDiscover reads a root of 200 skills in a helper.
func BenchmarkDiscover(b *testing.B) {
	pool := NewPool(Config{})
	defer pool.Close()
	dir := skills(b, 200, 4096)
	files, err := pool.Files(b.Context(), workspace(b, dir))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		found, err := files.Discover(b.Context(), dir)
		if err != nil || len(found.Skills) != 200 {
			b.Fatal(err)
		}
	}
}
