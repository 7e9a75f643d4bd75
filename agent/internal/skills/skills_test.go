package skills

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/discovery"
	"github.com/execagent/execagent/internal/fswatch"
	"github.com/execagent/execagent/internal/inotify"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open makes a Discovery of what is below dir. refuse, if not nil, is the error of every
// request with a sandbox.
func open(t testing.TB, dir string, refuse error) *Discovery {
	t.Helper()
	var group inotify.Group
	d := New(Config{
		Hold: func(context.Context, string, int64) (func(), error) { return func() {}, nil },
		Files: func(_ context.Context, _ string, s *protocol.Sandbox) (fsops.FS, error) {
			if s != nil && refuse != nil {
				return nil, refuse
			}
			return fsops.Host{}, nil
		},
		ErrorText: func(err error) string { return err.Error() },
		Places: func() discovery.Places {
			return discovery.Places{CodexHome: dir + "/codex", Home: dir + "/home", System: dir + "/etc"}
		},
		Watcher: fswatch.NewWatcher(&group),
	})
	t.Cleanup(func() {
		d.Close()
		group.Close()
	})
	return d
}

func write(t testing.TB, name, text string) {
	t.Helper()
	rig.Must(t, os.MkdirAll(filepath.Dir(name), 0o755))
	rig.Must(t, os.WriteFile(name, []byte(text), 0o600))
}

func writeSkill(t testing.TB, folder, description string) {
	t.Helper()
	write(t, folder+"/SKILL.md", "---\ndescription: "+description+"\n---\n")
}

func installed(t testing.TB, d *Discovery, s *protocol.Sandbox) (r protocol.DiscoverInstalledResult) {
	t.Helper()
	encoded := rig.Value(d.Installed(t.Context(), "a", s))
	if err := json.Unmarshal(encoded, &r); err != nil {
		t.Fatalf("%v in %s", err, encoded)
	}
	return r
}

// confined is a sandbox that is no other's.
func confined(n int) *protocol.Sandbox {
	return &protocol.Sandbox{
		WindowsSandboxLevel: protocol.WindowsSandboxDisabled, Cwd: new(protocol.NewPathURI(fmt.Sprintf("/w%d", n))),
		Permissions: protocol.Permissions{
			Type: protocol.PermissionsManaged, Network: protocol.NetworkRestricted,
			FileSystem: &protocol.FileSystemRules{Type: protocol.FileSystemRestricted},
		},
	}
}

// TestChanges: an answer is remembered until something changes, also where nothing was at
// first, and is then made again.
func TestChanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := open(t, dir, nil)
	r := installed(t, d, nil)
	rig.Is(t, len(r.Skills)+len(r.Plugins)+len(r.Warnings), 0, "installed is %+v", r)
	first, _ := d.Installed(t.Context(), "a", nil)
	second, _ := d.Installed(t.Context(), "a", nil)
	rig.Is(t, &first[0], &second[0], "nothing has changed, and the answer was made again")
	writeSkill(t, dir+"/home/.agents/skills/a", "d")
	deadline := time.Now().Add(time.Minute)
	for len(installed(t, d, nil).Skills) == 0 {
		if time.Now().After(deadline) {
			t.Fatal("the skill is never seen")
		}
		time.Sleep(5 * time.Millisecond) // between looks
	}
	r = installed(t, d, nil)
	if s := r.Skills[0]; s.Name != "a" || s.DiscoveryRoot.ID != "user-agent-skills" || s.Path.String() != "file://"+dir+"/home/.agents/skills/a/SKILL.md" {
		t.Errorf("%+v", s)
	}
}

// TestContexts: each sandbox has an answer of its own, and the oldest answers go.
func TestContexts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeSkill(t, dir+"/codex/skills/a", "d")
	d := open(t, dir, nil)
	for n := range maxContexts + 3 {
		rig.Is(t, len(installed(t, d, confined(n)).Skills), 1, "skills of sandbox %d", n)
	}
	rig.Is(t, len(d.entries), maxContexts, "answers are kept")
	refused := errors.New("refused")
	d = open(t, dir, refused)
	rig.Is(t, rig.Err(d.Installed(t.Context(), "a", confined(0))), refused, "a sandbox that cannot be had")
	disabled := &protocol.Sandbox{Permissions: protocol.Permissions{Type: protocol.PermissionsDisabled}}
	rig.Is(t, rig.Err(d.Installed(t.Context(), "a", disabled)), refused, "a sandbox that confines nothing")
	rig.Is(t, len(d.entries), 2, "answers then")
}

// TestUnreadable: what cannot be read is a warning of a location or the error of a root, and
// the others are found.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeSkill(t, dir+"/etc/a", "d")
	write(t, dir+"/home/.agents/skills", "a file") // is as if it were missing
	rig.Must(t, errors.Join(os.Mkdir(dir+"/codex", 0o755), os.Symlink("skills", dir+"/codex/skills")))
	refused := errors.New("refused")
	d := open(t, dir, refused)
	for range 2 { // the second answer is made again, as nobody can watch the link
		r := installed(t, d, nil)
		rig.Is(t, len(r.Skills) == 1 && strings.Join(r.Warnings, "|") == warnMetadata, true, "%+v", r)
	}
	at := protocol.NewPathURI(dir + "/etc")
	r, _, err := d.Roots(t.Context(), "a", []protocol.CapabilityRoot{{At: at, Sandbox: confined(0)}, {At: at}, {At: protocol.NewPathURI(dir + "/codex/skills")}})
	if err != nil || *r.Roots[0].Error != "refused" || len(r.Roots[1].Skills) != 1 || r.Roots[2].Error == nil {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestManifests: what becomes of an installed plugin by the members of its manifest.
func TestManifests(t *testing.T) {
	t.Parallel()
	for _, row := range rig.Rows(t, "testdata/manifests.txt", "manifests", 2) {
		dir := t.TempDir()
		at := dir + "/codex/plugins/cache/mk/p/1/"
		for name, text := range map[string]string{".codex-plugin/plugin.json": row[0], ".mcp.json": "M", ".app.json": "A", "m": "N"} {
			write(t, at+name, text)
		}
		writeSkill(t, at+"skills/s", "d")
		r := installed(t, open(t, dir, nil), nil)
		got := "dropped"
		file := func(f *protocol.DiscoveredFile) string {
			if f == nil {
				return "-"
			}
			return strings.TrimPrefix(f.Path.String(), "file://"+at) + "=" + f.Contents
		}
		for _, p := range r.Plugins {
			got = file(p.Files.MCPConfig) + " " + file(p.Files.AppsConfig) + " " + p.DisplayName
			rig.Is(t, len(p.Skills), 1, "skills")
		}
		if len(r.Warnings) > 0 {
			got += fmt.Sprintf(" %d warning", len(r.Warnings))
		}
		rig.Is(t, got, row[1], "%s", row[0])
	}
}

// TestDetails: what is passed over is named, with the reason.
func TestDetails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cache := dir + "/codex/plugins/cache/mk/"
	write(t, cache+"bad/1/.codex-plugin/plugin.json", `{"apps":{}}`)
	write(t, cache+"gone/1/.codex-plugin/plugin.json", `{"mcpServers":"./m.json"}`)
	write(t, cache+"none/1/file", "")
	write(t, cache+"linked/1", "")
	rig.Must(t, os.Symlink("../gone/1", cache+"linked/2"))
	write(t, dir+"/codex/plugins/cache/a.b/p/1/x", "")
	write(t, dir+"/etc/a/SKILL.md", "no front matter")
	write(t, dir+"/etc/b/SKILL.md", "---\nname: x\n---\n")
	write(t, dir+"/etc/c/SKILL.md", "\xff")
	writeSkill(t, dir+"/etc/good", "d")
	rig.Must(t, errors.Join(os.Mkdir(dir+"/etc/link", 0o755), os.Symlink("../good/SKILL.md", dir+"/etc/link/SKILL.md")))
	d := open(t, dir, nil)
	answer := rig.Value(d.Installed(t.Context(), "a", nil))
	var r struct{ Details, Warnings []string }
	rig.Must(t, json.Unmarshal(rig.Value(d.WithDetails(t.Context(), "a", answer)), &r))
	for i, line := range r.Details {
		r.Details[i] = strings.TrimPrefix(line, dir+"/")
	}
	slices.Sort(r.Details)
	rig.Same(t, "details", []string{
		"codex/plugins/cache/a.b: no folder in it is a plugin by its name: a marketplace has letters, digits, - and _",
		"codex/plugins/cache/mk/bad/1/.codex-plugin/plugin.json: the plugin is passed over: apps: invalid type: map, expected a string",
		"codex/plugins/cache/mk/gone/1/m.json: mcpServers of the manifest names this file, and there is none that can be read",
		"codex/plugins/cache/mk/linked: no folder in it is a version of a plugin; a link to a folder is none",
		"codex/plugins/cache/mk/none/1: no plugin, because it has no .codex-plugin/plugin.json that can be read",
		"etc/a/SKILL.md: no skill: no front matter",
		"etc/b/SKILL.md: no skill: no description",
		"etc/c/SKILL.md: is not UTF-8",
		"etc/link/SKILL.md: no skill, because it is a link: only a folder may be one",
	}, r.Details)
	rig.Is(t, string(rig.Value(d.Installed(t.Context(), "a", nil))), string(answer), "the answer that is kept")
}

// TestDetailsAreBounded: they wait for their turn and for memory, and look at so many names.
func TestDetailsAreBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 5 {
		write(t, fmt.Sprint(dir, "/etc/", i), "")
	}
	e := explanation{left: 3}
	rig.Is(t, [2]int{len(e.list(t.Context(), dir+"/etc")), len(e.list(t.Context(), dir+"/etc"))}, [2]int{3, 0}, "names")
	d := open(t, dir, nil)
	answer := rig.Value(d.Installed(t.Context(), "a", nil))
	given, cancel := context.WithCancel(t.Context())
	rig.Must(t, d.Details.Take("a", 1))
	cancel()
	rig.Is(t, rig.Err(d.WithDetails(given, "a", answer)), context.Canceled, "a second run of one owner")
	rig.Check(t, rig.Err(d.WithDetails(t.Context(), "b", answer)))
	full := errors.New("full")
	d.cfg.Hold = func(context.Context, string, int64) (func(), error) { return nil, full }
	rig.Is(t, rig.Err(d.WithDetails(t.Context(), "b", answer)), full, "details without memory")
	rig.Is(t, rig.Err(d.Installed(t.Context(), "b", confined(0))), full, "a search without memory")
	_, _, err := d.Roots(t.Context(), "b", nil)
	rig.Is(t, err, full, "roots without memory")
}

// TestInstalledBounds: what does not fit is left out, with a warning, and what is smaller
// still fits.
func TestInstalledBounds(t *testing.T) {
	t.Parallel()
	t.Run("bytes", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		for i := range 5 {
			plugin := fmt.Sprintf("%s/codex/plugins/cache/mk/p%d/1/.codex-plugin/plugin.json", dir, i)
			write(t, plugin, `{"name":"p"}`+strings.Repeat(" ", discovery.MaxFile-20))
		}
		writeSkill(t, dir+"/codex/skills/a", "d")
		writeSkill(t, dir+"/etc/bad", "''")
		r := installed(t, open(t, dir, nil), nil)
		if len(r.Plugins) != 3 || len(r.Skills) != 1 || strings.Join(r.Warnings, "|") != warnLimit+"|"+warnMetadata {
			t.Errorf("%d plugins, %d skills, %q", len(r.Plugins), len(r.Skills), r.Warnings)
		}
	})
	t.Run("count", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		write(t, dir+"/codex/plugins/cache/mk/p/1/.codex-plugin/plugin.json", `{}`)
		for i := range 900 {
			writeSkill(t, fmt.Sprintf("%s/codex/plugins/cache/mk/p/1/%d", dir, i), "d")
			writeSkill(t, fmt.Sprintf("%s/codex/skills/%d", dir, i), "d")
			writeSkill(t, fmt.Sprintf("%s/home/.agents/skills/%d", dir, i), "d")
		}
		r := installed(t, open(t, dir, nil), nil)
		n := len(r.Plugins) + len(r.Plugins[0].Skills) + len(r.Skills)
		rig.Is(t, n == maxFound && strings.Join(r.Warnings, "|") == warnLimit, true, "%d are found, %q", n, r.Warnings)
	})
}

// TestInstalledRead: locations that have more than is read of all are left out, with a warning.
func TestInstalledRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 9 { // each of 15 MiB: a manifest, and files without front matter
		plugin := fmt.Sprintf("%s/codex/plugins/cache/mk/p%d/1/", dir, i)
		write(t, plugin+".codex-plugin/plugin.json", `{}`)
		for j := range 15 {
			file := fmt.Sprintf("%s%d/SKILL.md", plugin, j)
			write(t, file, "")
			rig.Must(t, os.Truncate(file, discovery.MaxFile))
		}
	}
	writeSkill(t, dir+"/codex/skills/a", "d")
	r := installed(t, open(t, dir, nil), nil)
	want := []string{warnLimit}
	for range 8 {
		want = append(want, warnMetadata)
	}
	if len(r.Plugins) != 8 || len(r.Skills) != 0 || !slices.Equal(r.Warnings, want) {
		t.Errorf("%d plugins, %d skills, %q", len(r.Plugins), len(r.Skills), r.Warnings)
	}
}

// TestRootsBounds: roots for which an answer has no room are errors, and say so.
func TestRootsBounds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 13 { // of control characters: each is six bytes in JSON
		write(t, fmt.Sprintf("%s/r/%d/SKILL.md", dir, i), strings.Repeat("\x01", 600_000))
	}
	writeSkill(t, dir+"/small", "d")
	d := open(t, dir, nil)
	root := func(name string) protocol.CapabilityRoot {
		at := protocol.NewPathURI(dir + "/" + name)
		return protocol.CapabilityRoot{ID: name, Path: at.String(), At: at}
	}
	r, size, err := d.Roots(t.Context(), "a", []protocol.CapabilityRoot{root("small"), root("r"), root("r"), root("small"), root("none")})
	rig.Must(t, err)
	var got []string
	for _, root := range r.Roots {
		got = append(got, fmt.Sprintf("%d %v", len(root.Skills), root.Error != nil))
	}
	if want := "1 false, 13 false, 0 true, 1 false, 0 true"; strings.Join(got, ", ") != want || size > maxAnswer {
		t.Errorf("%s, want %s; %d bytes", strings.Join(got, ", "), want, size)
	}
	text, err := json.Marshal(r)
	rig.Is(t, err == nil && len(text) <= size+10_000, true, "%d bytes of JSON, counted were %d: %v", len(text), size, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = d.Roots(ctx, "a", []protocol.CapabilityRoot{root("small")})
	rig.Is(t, err, context.Canceled, "with a context that has ended")
}

// BenchmarkInstalled asks for what is remembered of 500 skills.
func BenchmarkInstalled(b *testing.B) {
	dir := b.TempDir()
	for i := range 500 {
		writeSkill(b, fmt.Sprintf("%s/codex/skills/%d", dir, i), strings.Repeat("d", 200))
	}
	d := open(b, dir, nil)
	if r := installed(b, d, nil); len(r.Skills) != 500 {
		b.Fatal(len(r.Skills))
	}
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf = rig.Value(protocol.AppendResult(buf[:0], protocol.ID{}, rig.Value(d.Installed(b.Context(), "a", nil))))
	}
}
