package capability_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/harness/capability"
	"github.com/execagent/execagent/harness/environment"
	"github.com/execagent/execagent/harness/threadlog"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

const skill = "---\nname: s\ndescription: d\n---\nBODY"

var samePath = cmp.Options{cmpopts.EquateEmpty(), cmp.Comparer(func(a, b protocol.PathURI) bool { return a == b })}

// TestFileCalls: what an agent finds in its own files, and what a client finds with file calls at
// an agent that has no discovery, is the same.
func TestFileCalls(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{
		".codex-plugin/plugin.json":             `{"name":"above"}`,
		"plug/.claude-plugin/plugin.json":       `{"name":"demo","mcpServers":"./conf/m.json","apps":"../a"}`,
		"plug/.cursor-plugin/plugin.json":       `{}`,
		"plug/conf/m.json":                      "M",
		"plug/.app.json":                        "A",
		"plug/s/SKILL.md":                       skill,
		"plug/s/agents/openai.yaml":             "policy: {}",
		"plug/é/SKILL.md":                       skill,
		"plug/A/SKILL.md":                       skill,
		"plug/A/agents":                         "a file",
		"plug/.git/x/SKILL.md":                  skill,
		"plug/n/.codex-plugin/plugin.json":      `{"name":"nested"}`,
		"plug/n/.claude-plugin/plugin.json":     `{"name":"hidden"}`,
		"plug/n/t/SKILL.md":                     skill,
		"plug/bad/SKILL.md":                     "\xff",
		"plug/bad/agents/openai.yaml":           "not read",
		"plug/large/SKILL.md":                   strings.Repeat("x", 1<<20+1),
		"plug/a/b/c/d/e/f/SKILL.md":             skill,
		"plug/a/b/c/d/e/f/g/SKILL.md":           "too deep",
		"bare/SKILL.md":                         skill,
		"bare/.codex-plugin/plugin.json/x":      "a folder in the place of the manifest",
		"inline/.codex-plugin/plugin.json":      `{"mcpServers":{"x":{}}}`,
		"inline/.mcp.json":                      "not read",
		"broken/.codex-plugin/plugin.json":      "\ufeff{}",
		"broken/.mcp.json":                      "M",
		"unreadable/.codex-plugin/plugin.json":  "\xff",
		"unreadable/.claude-plugin/plugin.json": "{}",
		"file":                                  "",
	})
	for name, target := range map[string]string{"bare/link": "../plug/s", "bare/SKILL.md.link": "../plug/s/SKILL.md", "plug/loop": "."} {
		rig.Must(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	rig.Must(t, unix.Mkfifo(filepath.Join(dir, "plug/agents"), 0o600))
	for i := range 20 { // more than a root may have
		write(t, dir, map[string]string{"full/" + string(rune('a'+i)) + "/SKILL.md": strings.Repeat("x", 1<<20-i)})
	}
	home := t.TempDir()
	n, set := newNetwork(t, map[string]executor{"new": newAgent(t, home), "old": newAgent(t, home, protocol.MethodDiscoverRoots)})
	for _, name := range []string{"plug", "bare", "inline", "broken", "unreadable", "full", "file", "none", "plug/s", "plug/.claude-plugin"} {
		path := filepath.Join(dir, name)
		thread := newThread(t, root("n", "new", path), root("o", "old", path))
		v := discover(t, set, thread, "new", "old")
		rig.Same(t, name+": roots", []string{"n", "o"}, ids(v))
		a, b := v.Roots[0].Found, v.Roots[1].Found
		if called := n.take("new"); !slices.Contains(called, protocol.MethodDiscoverRoots) || slices.Contains(called, protocol.MethodFSWalk) {
			t.Errorf("%s: of the new agent were called %v", name, called)
		}
		if called := n.take("old"); name == "plug" {
			phases(t, called)
		}
		rig.Same(t, fmt.Sprintf("%s: plugin", name), a.Plugin, b.Plugin, samePath)
		if diff := cmp.Diff(a.Skills, b.Skills, samePath); diff != "" && len(a.Skills) != len(b.Skills) {
			t.Errorf("%s: %d and %d skills", name, len(a.Skills), len(b.Skills))
		} else if diff != "" {
			t.Errorf("%s: skills (-agent +file calls):\n%.2000s", name, diff)
		}
		rig.Same(t, fmt.Sprintf("%s: namespaces", name), a.Namespaces, b.Namespaces, samePath)
		slices.Sort(a.Warnings)
		slices.Sort(b.Warnings)
		rig.Same(t, fmt.Sprintf("%s: warnings", name), a.Warnings, b.Warnings, samePath)
		if (a.Err == nil) != (b.Err == nil) || a.Err != nil && !strings.Contains(b.Err.Error(), strings.SplitN(a.Err.Error(), ": ", 2)[0]) {
			t.Errorf("%s: errors %v and %v", name, a.Err, b.Err)
		}
		rig.Is(t, a.Err != nil, name == "file" || name == "none", "%s: there is an error, %v", name, a.Err)
	}
}

// phases checks the order of file calls (client.md 5.5): the root, the manifests, what they
// declare, one walk, the skills.
func phases(t *testing.T, called []string) {
	t.Helper()
	stat, read, walk := protocol.MethodFSGetMetadata, protocol.MethodFSReadFile, protocol.MethodFSWalk
	called = slices.DeleteFunc(called, func(method string) bool { return method == protocol.MethodDiscoverInstalled })
	want := []string{protocol.MethodDiscoverRoots, stat, stat, stat, stat, read, stat, read, stat, read, walk}
	rig.Is(t, len(called) >= len(want) && slices.Equal(called[:len(want)], want), true, "called are %v", called)
	rig.Is(t, slices.Contains(called[len(want):], walk), false, "there is another walk")
}

// TestLifeOfThread: the log of a thread keeps the selection, over a resume and in forks of all
// kinds. What was found is kept as long as the thread, and found out again by those.
func TestLifeOfThread(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{"p/s/SKILL.md": "one"})
	_, set := newNetwork(t, map[string]executor{"e": newAgent(t, t.TempDir())})
	selection := rig.Value(capability.Format([]capability.Root{root("demo", "e", dir+"/p"), root("other", "gone", "/x")}))
	store := rig.Value(threadlog.OpenStore(t.TempDir()))
	defer store.Close()
	log := rig.Value(store.Create(threadlog.Meta{SelectedCapabilityRoots: selection}))
	for range 2 {
		rig.Must(t, rig.Err(log.StartTurn(nil)))
		rig.Must(t, log.EndTurn(threadlog.TurnCompleted))
	}
	// begin restores a thread from its log.
	begin := func(log *threadlog.Thread) *capability.Thread {
		roots := rig.Value(capability.Parse(log.Meta().SelectedCapabilityRoots))
		thread := newThread(t, roots...)
		rig.Is(t, string(rig.Value(capability.Format(thread.Roots()))), string(selection), "the selection")
		return thread
	}
	finds := func(thread *capability.Thread, want string) {
		t.Helper()
		v := discover(t, set, thread, "e")
		if len(v.Roots) != 1 || len(v.Roots[0].Skills) != 1 || v.Roots[0].Skills[0].Instructions.Contents != want {
			t.Errorf("it finds %+v, want %s", v.Roots, want)
		}
	}
	thread := begin(log)
	finds(thread, "one")
	write(t, dir, map[string]string{"p/s/SKILL.md": "two"})
	finds(thread, "one")

	for _, turns := range []int{threadlog.AllTurns, 1, 0} {
		fork := rig.Value(store.Fork(log.ID(), turns))
		finds(begin(fork), "two")
		rig.Check(t, fork.Close())
		// And a fork that is resumed.
		again := rig.Value(store.Open(fork.ID()))
		finds(begin(again), "two")
		rig.Check(t, again.Close())
	}
	rig.Must(t, log.Close())
	resumed := rig.Value(store.Open(log.ID()))
	defer resumed.Close()
	finds(begin(resumed), "two")
	finds(thread, "one")

	old := rig.Value(store.Create(threadlog.Meta{}))
	defer old.Close()
	rig.Is(t, len(rig.Value(capability.Parse(old.Meta().SelectedCapabilityRoots))), 0, "roots of a log without a selection")
}

// TestInstalled: what is installed at an environment and what is selected both count.
func TestInstalled(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	write(t, home, map[string]string{
		"codex/plugins/cache/mk/inst/1.0.0/.codex-plugin/plugin.json": `{"name":"inst"}`,
		"codex/plugins/cache/mk/inst/1.0.0/skills/i/SKILL.md":         "---\nname: i\ndescription: D\n---\n",
		".agents/skills/k/SKILL.md":                                   "---\nname: k\ndescription: D\n---\n",
		"selected/SKILL.md":                                           skill,
	})
	n, set := newNetwork(t, map[string]executor{
		"a": newAgent(t, home), "b": newFake(t), "outside": newAgent(t, home),
	})
	thread := newThread(t, root("s", "a", home+"/selected"), root("o", "outside", home+"/selected"))
	v := discover(t, set, thread, "b", "a")
	rig.Same(t, "roots", []string{"s", "o"}, ids(v))
	if len(v.Environments) != 1 || v.Environments[0].EnvironmentID != "a" || v.Environments[0].Err != nil {
		t.Fatalf("the environments are %+v", v.Environments)
	}
	e := v.Environments[0]
	if len(e.Plugins) != 1 || e.Plugins[0].ID != "inst@mk" || len(e.Plugins[0].Skills) != 1 || len(e.Skills) != 1 || e.Skills[0].Name != "k" {
		t.Errorf("installed are %+v", e.Installed)
	}
	called := n.take("outside")
	rig.Is(t, slices.Contains(called, protocol.MethodDiscoverInstalled), false, "an environment that is not of the turn is asked")
	discover(t, set, thread, "outside")
	n.take("a")
	write(t, home, map[string]string{".agents/skills/l/SKILL.md": "---\nname: l\ndescription: D\n---\n"})
	if again := discover(t, set, thread, "a"); len(again.Environments) != 1 || again.Environments[0].Installed != e.Installed || n.take("a") != nil {
		t.Error("it was found out again")
	}
}

// TestReported: the roots that an environment reports count while it is ready, after those that the
// thread has selected.
func TestReported(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{"a/SKILL.md": skill, "b/SKILL.md": skill})
	n, set := newNetwork(t, map[string]executor{"e": newAgent(t, t.TempDir())})
	n.mu.Lock()
	n.executors["p"] = n.executors["e"]
	n.mu.Unlock()
	p := rig.Value(set.Provision("p", environment.Skills{}))
	thread := newThread(t, root("a", "p", dir+"/a"), root("x", "e", dir+"/a"))
	rig.Same(t, "roots before it is there", []string{"x"}, ids(discover(t, set, thread, "p", "e")))
	a := environment.CapabilityRoot{ID: "a", Path: protocol.NewPathURI(dir + "/a")}
	b := environment.CapabilityRoot{ID: "b", Path: protocol.NewPathURI(dir + "/b")}
	rig.Must(t, p.Ready(url("p"), b, a))
	rig.Must(t, rig.Err(p.Client(t.Context())))
	v := discover(t, set, thread, "p", "e")
	if !slices.Equal(ids(v), []string{"a", "x", "b"}) || v.Roots[2].EnvironmentID != "p" || len(v.Roots[2].Skills) != 1 {
		t.Errorf("there are %+v", v.Roots)
	}
	rig.Same(t, "roots in a turn without it", []string{"a", "x"}, ids(discover(t, set, thread, "e")))
}

// without is a sandbox that may read everything but one path.
func without(path string) *protocol.Sandbox {
	entry := func(access string, path protocol.SandboxPath) protocol.SandboxEntry {
		return protocol.SandboxEntry{Path: path, Access: access}
	}
	return &protocol.Sandbox{
		WindowsSandboxLevel: protocol.WindowsSandboxDisabled,
		Permissions: protocol.Permissions{Type: protocol.PermissionsManaged, Network: protocol.NetworkRestricted, FileSystem: &protocol.FileSystemRules{
			Type: protocol.FileSystemRestricted, Entries: []protocol.SandboxEntry{
				entry("read", protocol.SandboxPath{Type: "special", Value: &protocol.SpecialPlace{Kind: "root"}}),
				entry("none", protocol.SandboxPath{Type: "path", Path: new(protocol.NewPathURI(path))}),
			},
		}},
	}
}

// TestConfined: what a sandbox denies is not found, with discovery and with file calls alike.
func TestConfined(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	write(t, home, map[string]string{
		"r/.codex-plugin/plugin.json": `{"name":"demo"}`, "r/a/SKILL.md": skill, "r/b/SKILL.md": skill,
		".agents/skills/b/SKILL.md": "---\nname: k\ndescription: D\n---\n",
	})
	_, set := newNetwork(t, map[string]executor{"new": newAgent(t, home), "old": newAgent(t, home, protocol.MethodDiscoverRoots)})
	var now *protocol.Sandbox
	thread, err := capability.New(capability.Config{
		Roots:   []capability.Root{root("n", "new", home+"/r"), root("o", "old", home+"/r")},
		Sandbox: func(string) *protocol.Sandbox { return now },
		Timeout: patience,
	})
	rig.Must(t, err)
	for _, tt := range []struct {
		sandbox           *protocol.Sandbox
		plugin            bool
		skills, installed int
	}{
		{nil, true, 2, 1},
		{without(home + "/r/b"), true, 1, 1},
		{without(home + "/r/.codex-plugin"), false, 2, 1},
		{without(home + "/.agents"), true, 2, 0},
		{nil, true, 2, 1},
	} {
		now = tt.sandbox
		v := discover(t, set, thread, "new", "old")
		for _, r := range v.Roots {
			if r.Err != nil || (r.Plugin != nil) != tt.plugin || len(r.Skills) != tt.skills {
				t.Errorf("%s: %d skills, plugin %+v, %v", r.ID, len(r.Skills), r.Plugin, r.Err)
			}
		}
		for _, e := range v.Environments {
			if e.Err != nil || len(e.Skills) != tt.installed {
				t.Errorf("%s: %d skills are installed, %v", e.EnvironmentID, len(e.Skills), e.Err)
			}
		}
		rig.Is(t, len(v.Environments), 2, "environments")
	}
}
