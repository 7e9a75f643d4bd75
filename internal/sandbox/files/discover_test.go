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

	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/discovery"
	"github.com/execagent/execagent/internal/sandbox/resolve"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
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
		rig.Must(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600))
	}
	return dir
}

// seen is what there is in dir for who reads it through the view of policy.
func seen(t *testing.T, policy *sandbox.Policy, dir string) *discovery.Root {
	t.Helper()
	resolved := rig.Value(resolve.Policy(policy))
	defer resolved.Close()
	view := rig.Value(newView(resolved.Policy))
	defer view.Close()
	return rig.Value(discovery.Read(t.Context(), view, dir))
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
			want := seen(t, policy, dir)
			if want.Plugin == nil || want.Plugin.MCP != nil || len(want.Skills) < 15 || len(want.Warnings) < 3 {
				t.Errorf("%d skills, %+v, %+v", len(want.Skills), want.Plugin, want.Warnings)
			}
			files := rig.Value(pool.Files(t.Context(), policy))
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					got := rig.Value(files.Discover(t.Context(), dir))
					rig.Same(t, "in this process and in a helper", want, got, cmpopts.EquateEmpty(), cmpopts.EquateErrors())
				})
			}
			wg.Wait()
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			rig.Is(t, rig.Err(files.Discover(ctx, dir)), context.Canceled, "with a context that has ended")
			pool.Close()
			children.check(t, 1)
		})
	}
}

// BenchmarkDiscover reads a root of 200 skills with metadata in each of the ways in which an agent
// may: without a policy, through the view of one, and in a helper, as a policy that denies names
// wants it. What one costs more than another counts, not the figures.
func BenchmarkDiscover(b *testing.B) {
	dir := skills(b, 200, 4096)
	for i := range 200 {
		folder := filepath.Join(dir, fmt.Sprint(i), "agents")
		rig.Must(b, os.Mkdir(folder, 0o755), os.WriteFile(filepath.Join(folder, "openai.yaml"), []byte("policy: {}"), 0o600))
	}
	policy := workspace(b, dir)
	resolved := rig.Value(resolve.Policy(policy))
	defer resolved.Close()
	view := rig.Value(newView(resolved.Policy))
	defer view.Close()
	pool := NewPool(Config{})
	defer pool.Close()
	confined := rig.Value(pool.Files(b.Context(), policy))
	for _, way := range []struct {
		name string
		read func() (*discovery.Root, error)
	}{
		{"host", func() (*discovery.Root, error) { return discovery.Read(b.Context(), fsops.Host{}, dir) }},
		{"view", func() (*discovery.Root, error) { return discovery.Read(b.Context(), view, dir) }},
		{"helper", func() (*discovery.Root, error) { return confined.Discover(b.Context(), dir) }},
	} {
		b.Run(way.name, func(b *testing.B) {
			for b.Loop() {
				if found, err := way.read(); err != nil || len(found.Skills) < 200 {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestDiscoverHostile: a helper reads a root in which nothing is as it should be, and says the same
// of it as a view does: what leads to what the policy denies cannot be read by any name.
func TestDiscoverHostile(t *testing.T) {
	t.Parallel()
	pool, children := testPool(t, Config{})
	dir := skills(t, 3, 100)
	outside := t.TempDir()
	write := func(name, text string) error {
		path := filepath.Join(dir, name)
		return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600))
	}
	link := func(to, name string) error { return os.Symlink(to, filepath.Join(dir, name)) }
	err := errors.Join(
		os.WriteFile(outside+"/SKILL.md", []byte("shown"), 0o600),
		// It leads to what is denied, and a folder of links to the same and to itself.
		write(".codex-plugin/plugin.json", `{"mcpServers":"./secret","apps":"./vault/m.json"}`),
		link("vault/m.json", "secret"), link("vault", "links"), link(".", "self"), link(outside, "outside"), link("loop", "loop"),
		write("a/.claude-plugin/plugin.json", `{"name":"a"}`), link("../vault/SKILL.md", "a/SKILL.md"),
		write("big/SKILL.md", ""), os.Truncate(filepath.Join(dir, "big/SKILL.md"), 1<<30),
		write("text/SKILL.md", "\xff"), write("fifo/x", ""), unix.Mkfifo(filepath.Join(dir, "fifo/SKILL.md"), 0o600),
		write("0/agents/x", ""), unix.Mkfifo(filepath.Join(dir, "0/agents/openai.yaml"), 0o600),
		write("1/agents/x", ""), link("/dev/zero", "1/agents/openai.yaml"),
		write("2/agents/x", ""), link("../../vault/m.json", "2/agents/openai.yaml"),
	)
	rig.Must(t, err)
	policy := workspace(t, dir)
	want := seen(t, policy, dir)
	files := rig.Value(pool.Files(t.Context(), policy))
	got := rig.Value(files.Discover(t.Context(), dir))
	rig.Same(t, "in this process and in a helper", want, got, cmpopts.EquateEmpty(), cmpopts.EquateErrors())
	for _, s := range got.Skills {
		rig.Is(t, s.Metadata != nil || strings.Contains(s.Instructions.Contents, "secret"), false, "%+v", s)
	}
	if p := got.Plugin; p == nil || p.MCP != nil || p.Apps != nil {
		t.Errorf("%+v", p)
	}
	counted := map[discovery.Trouble]int{}
	for _, w := range got.Warnings {
		counted[w.Trouble]++
	}
	if counted[discovery.TooLarge] != 1 || counted[discovery.NotText] != 1 || counted[discovery.NotInspected] < 2 || counted[discovery.NotScanned] < 4 || len(got.Skills) != 4 {
		t.Errorf("%d skills, %+v", len(got.Skills), got.Warnings)
	}
	pool.Close()
	children.check(t, 1)
}
