package hostenv

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// host is a directory that stands for a whole machine: it has etc/codex,
// home/.codex and w, with the projects.
type host struct {
	t    *testing.T
	root string
}

func newHost(t *testing.T, files map[string]string) *host {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	rig.Must(t, err)
	h := &host{t: t, root: root}
	for path, text := range files {
		h.write(path, text)
	}
	h.mkdir("w/p/q")
	return h
}

func (h *host) path(rel string) string { return filepath.Join(h.root, rel) }

func (h *host) mkdir(rel string) {
	h.t.Helper()
	rig.Must(h.t, os.MkdirAll(h.path(rel), 0o755))
}

// write makes a file; ROOT in text stands for the root.
func (h *host) write(rel, text string) {
	h.t.Helper()
	h.mkdir(filepath.Dir(rel))
	rig.Must(h.t, os.WriteFile(h.path(rel), []byte(strings.ReplaceAll(text, "ROOT", h.root)), 0o644))
}

func (h *host) query(paths ...[]string) ConfigQuery {
	return ConfigQuery{Cwd: h.path("w/p/q"), ConfigPaths: paths, Home: h.path("home"), SystemDir: h.path("etc/codex")}
}

// read reads what must be readable.
func (h *host) read(q ConfigQuery) ConfigResult {
	h.t.Helper()
	got, err := ReadConfig(h.t.Context(), q)
	rig.Must(h.t, err)
	return got
}

// sources lists the layers with ROOT for the root.
func (h *host) sources(stack ConfigStack) []string {
	var sources []string
	for _, l := range stack.Layers {
		sources = append(sources, strings.ReplaceAll(l.Source, h.root, "ROOT"))
	}
	return sources
}

// tomlOf is the text of all layers.
func tomlOf(stack ConfigStack) string {
	var text strings.Builder
	for _, l := range stack.Layers {
		text.WriteString(l.TOML)
	}
	return text.String()
}

func trusted(dirs ...string) string {
	var text strings.Builder
	for _, d := range dirs {
		text.WriteString("[projects.\"ROOT/" + d + "\"]\ntrust_level = \"trusted\"\n")
	}
	return text.String()
}

const (
	systemFile  = "etc/codex/config.toml"
	managedFile = "etc/codex/managed_config.toml"
	reqFile     = "etc/codex/requirements.toml"
	userFile    = "home/.codex/config.toml"
)

func TestReadConfigLayers(t *testing.T) {
	t.Parallel()
	server := "[mcp_servers.a]\ncommand = \"x\"\n"
	h := newHost(t, map[string]string{
		systemFile: server, managedFile: server, reqFile: server, userFile: server + trusted("w/p"),
		"home/.codex/managed_config.toml": server, "home/.codex/requirements.toml": server,
		"w/p/.git": "gitdir: /nowhere\n", "w/.codex/config.toml": server, "w/p/.codex/config.toml": server,
		"w/p/q/.codex/config.toml": server, "w/p/q/r/.codex/config.toml": server, "w/p/q/.codex/requirements.toml": server,
	})
	q := h.query([]string{"mcp_servers"})
	q.RequirementsPaths = q.ConfigPaths
	hostname, _ := os.Hostname()
	layer := func(source, dir string) ConfigLayer {
		return ConfigLayer{
			Source: strings.ReplaceAll(source, "ROOT", h.root), BaseDir: h.path(dir),
			TOML: "[mcp_servers]\n[mcp_servers.a]\ncommand = \"x\"\n",
		}
	}
	want := ConfigResult{
		Home: h.path("home"), CodexHome: h.path("home/.codex"), Hostname: hostname,
		Config: ConfigStack{CloudInsertionIndex: 1, Layers: []ConfigLayer{
			layer("system (ROOT/etc/codex/config.toml)", "etc/codex"),
			layer("user (ROOT/home/.codex/config.toml)", "home/.codex"),
			layer("project (ROOT/w/p/.codex/config.toml)", "w/p/.codex"),
			layer("project (ROOT/w/p/q/.codex/config.toml)", "w/p/q/.codex"),
			layer("legacy managed_config.toml (ROOT/etc/codex/managed_config.toml)", "etc/codex"),
		}},
		Requirements: ConfigStack{CloudInsertionIndex: 1, Layers: []ConfigLayer{layer("ROOT/etc/codex/requirements.toml", "etc/codex")}},
	}
	rig.Same(t, "the result", want, h.read(q))
}

func TestReadConfigWithoutFiles(t *testing.T) {
	t.Parallel()
	h := newHost(t, nil)
	got := h.read(h.query([]string{"mcp_servers"}))
	rig.Is(t, len(got.Config.Layers)+len(got.Requirements.Layers), 0, "layers")
	rig.Is(t, got.CodexHome, h.path("home/.codex"), "CODEX_HOME")
	h.write(userFile, "model = 1\n")
	rig.Is(t, len(h.read(h.query([]string{"mcp_servers"})).Config.Layers), 0, "layers with nothing selected")
	got = h.read(h.query([]string{"model"}))
	rig.Is(t, len(got.Config.Layers), 1, "layers of the user's file alone")
	rig.Is(t, got.Config.CloudInsertionIndex, 0, "index")
}

func TestReadConfigParams(t *testing.T) {
	t.Parallel()
	h := newHost(t, nil)
	rig.Is(t, rig.Err(ReadConfig(t.Context(), h.query())), ErrNoConfigPath, "no path")
	rig.Is(t, rig.Err(ReadConfig(t.Context(), h.query([]string{"a"}, nil))), ErrEmptyConfigPath, "path without keys")
	q := h.query()
	q.RequirementsPaths = [][]string{{}}
	rig.Is(t, rig.Err(ReadConfig(t.Context(), q)), ErrEmptyConfigPath, "requirements path without keys")
	many := slices.Repeat([]string{"k"}, maxConfigKeys/2)
	long := []string{strings.Repeat("k", maxConfigKeyBytes)}
	for _, paths := range [][][]string{{many, many}, {slices.Concat(many, many)}, {long}} {
		q = h.query(paths...)
		rig.Check(t, rig.Err(ReadConfig(t.Context(), q)))
		q.RequirementsPaths = [][]string{{"k"}}
		rig.Is(t, rig.Err(ReadConfig(t.Context(), q)), ErrManyConfigKeys, "one key more than may be")
	}
	q = h.query([]string{"k"})
	q.Cwd = strings.Repeat("/a", maxCwd/2) + "b"
	h.read(q)
	q.Cwd += "b"
	rig.Is[error](t, rig.Err(ReadConfig(t.Context(), q)), syscall.ENAMETOOLONG, "cwd of %d bytes", len(q.Cwd))
	q.Cwd = ""
	rig.Is(t, rig.Err(ReadConfig(t.Context(), q)) != nil, true, "empty cwd: an error")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	rig.Is(t, rig.Err(ReadConfig(ctx, h.query([]string{"a"}))), context.Canceled, "cancelled")
}

func TestCodexHome(t *testing.T) {
	t.Parallel()
	h := newHost(t, map[string]string{"real/config.toml": "model = 1\n"})
	rig.Must(t, os.Symlink("real", h.path("link")))
	q := h.query([]string{"model"})
	q.CodexHome = h.path("link")
	got := h.read(q)
	rig.Is(t, got.CodexHome, h.path("real"), "where the link leads")
	rig.Is(t, len(got.Config.Layers), 1, "layers")
	q.CodexHome = h.path("nope")
	rig.Is(t, rig.Err(ReadConfig(t.Context(), q)) != nil, true, "missing CODEX_HOME: an error")
	q.CodexHome, q.Home = "", ""
	rig.Is(t, rig.Err(ReadConfig(t.Context(), q)) != nil, true, "no home at all: an error")
}

func TestSelection(t *testing.T) {
	t.Parallel()
	const text = `
model = "a\nb\t\"q\""
n = 255
f = 1e10
when = [1979-05-27T07:32:00Z, 1979-05-27T00:32:00.999999-07:00]
day = 1979-05-27
time = 07:32:00
arr = [1, [3, "x"], {a = 1, b = {c = 2}}]
"" = "empty key"
"dot.ted" = 1
[t]
x = 1
[t.sub]
y = 2
"we ird" = [{a = 1}, {b = 2}]
[[aot]]
n = 1
[empty]
`
	tests := []struct {
		name  string
		paths [][]string
		want  string
	}{
		{"scalar", [][]string{{"n"}}, "n = 255\n"},
		{"string", [][]string{{"model"}}, "model = \"a\\nb\\t\\\"q\\\"\"\n"},
		{"dates", [][]string{{"when"}, {"day"}, {"time"}}, "day = 1979-05-27\ntime = 07:32:00\nwhen = [1979-05-27T07:32:00Z, 1979-05-27T00:32:00.999999-07:00]\n"},
		{"array", [][]string{{"arr"}}, "arr = [1, [3, \"x\"], {a = 1, b = {c = 2}}]\n"},
		{"empty key", [][]string{{""}}, "\"\" = \"empty key\"\n"},
		{"key with a dot", [][]string{{"dot.ted"}}, "\"dot.ted\" = 1\n"},
		{"dots do not split", [][]string{{"dot", "ted"}}, ""},
		{"missing", [][]string{{"nope"}}, ""},
		{"two", [][]string{{"n"}, {"f"}, {"n"}}, "f = 1e+10\nn = 255\n"},
		{"table", [][]string{{"t"}}, "[t]\nx = 1\n[t.sub]\ny = 2\n\n[[t.sub.\"we ird\"]]\na = 1\n\n[[t.sub.\"we ird\"]]\nb = 2\n"},
		{"inside", [][]string{{"t", "sub", "y"}}, "[t]\n[t.sub]\ny = 2\n"},
		{"inside, twice", [][]string{{"t", "sub", "y"}, {"t", "x"}}, "[t]\nx = 1\n[t.sub]\ny = 2\n"},
		{"whole and part", [][]string{{"empty"}, {"empty", "x"}}, "[empty]\n"},
		{"part and whole", [][]string{{"t", "x"}, {"t", "sub"}, {"t", "sub", "y"}}, "[t]\nx = 1\n[t.sub]\ny = 2\n\n[[t.sub.\"we ird\"]]\na = 1\n\n[[t.sub.\"we ird\"]]\nb = 2\n"},
		{"table without the key", [][]string{{"t", "nope", "x"}}, "[t]\n"},
		{"through a scalar", [][]string{{"n", "x"}}, "n = 255\n"},
		{"through an array", [][]string{{"arr", "0"}}, "arr = [1, [3, \"x\"], {a = 1, b = {c = 2}}]\n"},
		{"through an array of tables", [][]string{{"aot", "n"}}, "[[aot]]\nn = 1\n"},
	}
	h := newHost(t, map[string]string{userFile: text})
	for _, tt := range tests {
		rig.Same(t, tt.name, tt.want, tomlOf(h.read(h.query(tt.paths...)).Config))
	}
}

func TestBadFiles(t *testing.T) {
	t.Parallel()
	trust := trusted("w/p/q")
	for _, tt := range []struct {
		name, path, text string
		want             string // a part of the error; empty if the file is fine
	}{
		{"user", userFile, "x = = 1", "config.toml"},
		{"system", systemFile, "x = = 1", "config.toml"},
		{"managed", managedFile, "x = = 1", "managed_config.toml"},
		{"requirements", reqFile, "x = = 1", "requirements.toml"},
		{"trusted project", "w/p/q/.codex/config.toml", "x = = 1", ".codex/config.toml"},
		{"untrusted project", "w/p/.codex/config.toml", "x = = 1", ""},
		{"same key twice", systemFile, "a = 1\na = 2\n", "a"},
		{"no utf-8", systemFile, "a = \"\xe9\"", "UTF-8"},
		{"byte order mark", systemFile, "\ufeffa = 1", ""},
		{"too large", systemFile, "#" + strings.Repeat("x", maxConfigSize), "over 1048576 bytes"},
		{"just not too large", systemFile, "#" + strings.Repeat("x", maxConfigSize-1), ""},
		{"deep arrays", systemFile, "a = " + strings.Repeat("[\n", maxConfigDepth+1) + strings.Repeat("]", maxConfigDepth+1), "deeper than 32"},
		{"deep tables", systemFile, "a = " + strings.Repeat("{a=", maxConfigDepth+1) + "1" + strings.Repeat("}", maxConfigDepth+1), "deeper than 32"},
		{"long key", systemFile, "a" + strings.Repeat(".\"b\"", maxConfigDepth+1) + " = 1", "deeper than 32"},
		{"hidden by quotes", systemFile, "a = [\"\"\"x\"\"\"\"\"," + strings.Repeat("{a=", maxConfigDepth+1) + "1" + strings.Repeat("}", maxConfigDepth+1) + "]", "deeper than 32"},
		{"brackets in strings", systemFile, "a = '" + strings.Repeat("[", 99) + "'\nb = \"\\\"" + strings.Repeat(".", 99) + "\"\nc = '''" + strings.Repeat("{", 99) + "\n'''#" + strings.Repeat("[", 99), ""},
		{"long keys", systemFile, longName("[%s]\n", "k%d={}\n", ""), "over 16777216 bytes"},
		{"long keys in a table", systemFile, longName("%s = {", "k%d=1,", "z=1}"), "over 16777216 bytes"},
		{"long keys in an array", systemFile, longName("%s = [", "{},", "]"), "over 16777216 bytes"},
		{"long keys in a table of a table", systemFile, longName("%s.x = {y = {", "k%d=1,", "z=1}}"), "over 16777216 bytes"},
		{"long key of plain values", systemFile, longName("%s = [\n", "1,\n", "]"), ""},
		{"long value", systemFile, longName("long = '%s'\n", "k%d=1\n", ""), ""},
		{"many dots", systemFile, "a = [" + strings.Repeat("1.5, ", 99) + "]", ""},
		{"projects", systemFile, "projects = 5", "projects is 5"},
		{"project", systemFile, "projects.x = 5", "is 5"},
		{"trust level", systemFile, "projects.x.trust_level = \"foo\"", "trust_level is foo"},
		{"markers", systemFile, "project_root_markers = 5", "project_root_markers is 5"},
		{"marker", systemFile, "project_root_markers = [5]", "project_root_markers has 5"},
		{"sandbox mode", managedFile, "sandbox_mode = \"foo\"", "sandbox_mode foo"},
	} {
		files := map[string]string{userFile: trust, tt.path: tt.text}
		rig.Says(t, rig.Err(ReadConfig(t.Context(), newHost(t, files).query([]string{"model"}))), tt.want, "%s", tt.name)
	}
}

// longName returns a document: begin, with a name of a third of a MiB for its %s;
// then item 10,000 times, numbered where it has a %d; then end.
func longName(begin, item, end string) string {
	var text strings.Builder
	fmt.Fprintf(&text, begin, strings.Repeat("k", maxConfigSize/3))
	for i := range 10_000 {
		text.WriteString(strings.ReplaceAll(item, "%d", strconv.Itoa(i)))
	}
	return text.String() + end
}

func TestNoFile(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		make func(path string) error
		want string // a part of the error; empty if the file counts as missing
	}{
		{"directory", func(path string) error { return os.Mkdir(path, 0o755) }, "not a file"},
		{"fifo", func(path string) error { return syscall.Mkfifo(path, 0o644) }, "not a file"},
		{"device", func(path string) error { return os.Symlink("/dev/null", path) }, "not a file"},
		{"loop", func(path string) error { return os.Symlink("config.toml", path) }, "too many levels"},
		{"dangling link", func(path string) error { return os.Symlink("nope", path) }, ""},
	} {
		h := newHost(t, nil)
		h.mkdir("home/.codex")
		rig.Must(t, tt.make(h.path(userFile)))
		rig.Says(t, rig.Err(ReadConfig(t.Context(), h.query([]string{"model"}))), tt.want, "%s", tt.name)
	}
	h := newHost(t, map[string]string{userFile: trusted("w/p/q"), "w/p/q/.codex": "a file"})
	h.read(h.query([]string{"model"}))
}

func TestProjectKeys(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	text.WriteString("model = 1\nprojects = {}\n")
	paths := [][]string{{"model"}}
	for _, key := range notForProjects() {
		text.WriteString(key + " = 1\n")
		paths = append(paths, []string{key})
	}
	h := newHost(t, map[string]string{userFile: trusted("w/p/q"), "w/p/q/.codex/config.toml": text.String(), systemFile: text.String()})
	layers := h.read(h.query(paths...)).Config.Layers
	rig.Is(t, len(layers), 2, "layers")
	rig.Is(t, strings.Count(layers[0].TOML, "\n"), len(paths), "keys of the system layer")
	rig.Is(t, layers[1].TOML, "model = 1\n", "project layer")
}

func TestImpliedRequirements(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ managed, want string }{
		{"approval_policy = \"never\"\nsandbox_mode = \"read-only\"", "allowed_approval_policies = [\"never\"]\nallowed_sandbox_modes = [\"read-only\"]\n"},
		{"sandbox_mode = \"workspace-write\"", "allowed_sandbox_modes = [\"read-only\", \"workspace-write\"]\n"},
		{"sandbox_mode = \"danger-full-access\"", "allowed_sandbox_modes = [\"read-only\", \"danger-full-access\"]\n"},
		{"model = 1", ""},
	} {
		h := newHost(t, map[string]string{managedFile: tt.managed})
		q := h.query()
		q.RequirementsPaths = [][]string{{"allowed_approval_policies"}, {"allowed_sandbox_modes"}}
		got := h.read(q).Requirements
		rig.Is(t, tomlOf(got), tt.want, "%q", tt.managed)
		rig.Is(t, got.CloudInsertionIndex, 0, "%q: index", tt.managed)
	}
}
