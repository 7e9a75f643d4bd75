package hostenv

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func TestTrust(t *testing.T) {
	t.Parallel()
	const p, q = "project (ROOT/w/p/.codex/config.toml)", "project (ROOT/w/p/q/.codex/config.toml)"
	untrusted := func(dir string) string { return "[projects.\"ROOT/" + dir + "\"]\ntrust_level = \"untrusted\"\n" }
	repository := map[string]string{"w/p/.git/HEAD": "ref: refs/heads/main\n"}
	worktree := map[string]string{
		"w/p/.git": "gitdir: ROOT/w/main/.git/worktrees/x\n", "w/main/.git/worktrees/x/gitdir": "ROOT/w/p/.git\n",
	}
	for _, tt := range []struct {
		name  string
		user  string
		files map[string]string
		cwd   string // below the root; w/p/q if empty
		want  []string
	}{
		{"nothing trusted", "", repository, "", nil},
		{"parent without repository", trusted("w/p"), nil, "", nil},
		{"repository", trusted("w/p"), repository, "", []string{p, q}},
		{"repository, from below", trusted("w/p"), repository, "w/p/q/r", []string{p, q}},
		{"only the directory", trusted("w/p/q"), repository, "", []string{q}},
		{"directory without repository", trusted("w/p/q"), nil, "", []string{q}},
		{"but not the directory", trusted("w/p") + untrusted("w/p/q"), repository, "", []string{p}},
		{"but not the repository", trusted("w/p/q") + untrusted("w/p"), repository, "", []string{q}},
		{"above the repository", trusted("w"), repository, "", nil},
		{"empty .git", trusted("w/p"), map[string]string{"w/p/.git/x": ""}, "", nil},
		{".git file", trusted("w/p"), map[string]string{"w/p/.git": ""}, "", []string{p, q}},
		{"worktree", trusted("w/main"), worktree, "", []string{p, q}},
		{"relative worktree", trusted("w/main"), map[string]string{
			"w/p/.git": "gitdir: ../main/.git/worktrees/x\n", "w/main/.git/worktrees/x/gitdir": "../../../../p/.git\n",
		}, "", []string{p, q}},
		{"forged worktree", trusted("w/main"), map[string]string{
			"w/p/.git": "gitdir: ROOT/w/main/.git/worktrees/x\n", "w/main/.git/worktrees/x/gitdir": "ROOT/w/other/.git\n", "w/other/.git": "",
		}, "", nil},
		{"worktree of nothing", trusted("w/main"), map[string]string{"w/p/.git": "gitdir: ROOT/w/main/.git/worktrees/x\n"}, "", nil},
		{"submodule", trusted("w"), map[string]string{"w/p/.git": "gitdir: ../.git/modules/p\n", "w/.git/HEAD": ""}, "", nil},
		{"other marker", "project_root_markers = [\"MARK\"]\n" + trusted("w/p"), map[string]string{"w/p/MARK": ""}, "", []string{p, q}},
		{"no marker", "project_root_markers = []\n" + trusted("w/p"), repository, "", nil},
		{"directory that is not there", trusted("w/p/none"), nil, "w/p/none", nil},
		{"the user's own .codex", trusted("home"), nil, "home", nil},
	} {
		h := newHost(t, map[string]string{
			userFile: "model = 1\n" + tt.user, "w/.codex/config.toml": "model = 1\n",
			"w/p/.codex/config.toml": "model = 1\n", "w/p/q/.codex/config.toml": "model = 1\n",
		})
		for path, text := range tt.files {
			h.write(path, text)
		}
		query := h.query([]string{"model"})
		if tt.cwd != "" {
			query.Cwd = h.path(tt.cwd)
		}
		rig.Same(t, tt.name, append([]string{"user (ROOT/home/.codex/config.toml)"}, tt.want...), h.sources(h.read(query).Config))
	}
}

func TestTrustThroughLinks(t *testing.T) {
	t.Parallel()
	h := newHost(t, map[string]string{userFile: trusted("w/p/q"), "w/p/q/.codex/config.toml": "model = 1\n"})
	rig.Must(t, os.Symlink("p/q", h.path("w/link")))
	query := h.query([]string{"model"})
	query.Cwd = h.path("w/link")
	rig.Same(t, "layers", []string{"project (ROOT/w/link/.codex/config.toml)"}, h.sources(h.read(query).Config))
}

func TestTrustOfStrongerFile(t *testing.T) {
	t.Parallel()
	h := newHost(t, map[string]string{
		systemFile: trusted("w/p/q"), "w/p/q/.codex/config.toml": "model = 1\n",
		managedFile: "[projects.\"ROOT/w/p/q\"]\ntrust_level = \"untrusted\"\n",
	})
	rig.Is(t, len(h.read(h.query([]string{"model"})).Config.Layers), 0, "layers, because the managed file wins")
}

func TestTrustEndsWithContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	rig.Is(t, rig.Err(wayTo(ctx, "/a")), context.Canceled, "way")
	tr := &trust{markers: []string{".git"}}
	rig.Is(t, rig.Err(tr.fromRoot(ctx, []trustFolder{{"/", "/"}})), context.Canceled, "root")
}

func TestWay(t *testing.T) {
	t.Parallel()
	h := newHost(t, nil)
	for name, target := range map[string]string{"w/link": "p", "w/dangling": "nowhere"} {
		rig.Must(t, os.Symlink(target, h.path(name)))
	}
	for _, tt := range []struct {
		dir  string
		want []trustFolder
	}{
		{"w/p", []trustFolder{{"w", "w"}, {"w/p", "w/p"}}},
		{"w/link/q", []trustFolder{{"w", "w"}, {"w/link", "w/p"}, {"w/link/q", "w/p/q"}}},
		{"w/dangling/q", []trustFolder{{"w", "w"}, {"w/dangling", ""}, {"w/dangling/q", ""}}},
		{"none/q", []trustFolder{{"none", ""}, {"none/q", ""}}},
	} {
		got, err := wayTo(t.Context(), h.path(tt.dir))
		rig.Must(t, err)
		got = got[strings.Count(h.root, "/")+1:]
		for i, p := range tt.want {
			tt.want[i].name = h.path(p.name)
			if p.real != "" {
				tt.want[i].real = h.path(p.real)
			}
		}
		rig.Is(t, fmt.Sprint(got), fmt.Sprint(tt.want), "%s", tt.dir)
	}
	rig.Is(t, fmt.Sprint(rig.Value(wayTo(t.Context(), "/"))), "[{/ /}]", "/")
}

func TestProjectLayersTogether(t *testing.T) {
	t.Parallel()
	h := newHost(t, map[string]string{"w/.git/HEAD": "", userFile: trusted("w")})
	query := h.query([]string{"model"})
	query.Cwd = h.path("w/1/2/3/4")
	big := "a = '" + strings.Repeat("x", maxConfigSize-6) + "'"
	for _, dir := range []string{"w/1", "w/1/2", "w/1/2/3", "w/1/2/3/4"} {
		h.write(dir+"/.codex/config.toml", big)
	}
	h.write("w/.codex/config.toml", "model = 1\n")
	rig.Says(t, rig.Err(ReadConfig(t.Context(), query)), "over 4194304 bytes", "four large layers and a small one")
}
