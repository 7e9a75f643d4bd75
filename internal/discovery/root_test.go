package discovery_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/discovery"
	"github.com/execagent/execagent/test/rig"
)

// write makes files below dir.
func write(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		rig.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		rig.Must(t, os.WriteFile(path, []byte(text), 0o600))
	}
}

func read(t testing.TB, root string) *discovery.Root {
	t.Helper()
	r, err := discovery.Read(t.Context(), fsops.Host{}, root)
	rig.Must(t, err)
	return r
}

func troubles(r *discovery.Root) (all []discovery.Trouble) {
	for _, w := range r.Warnings {
		all = append(all, w.Trouble)
	}
	return all
}

// size is how many bytes the skills have.
func size(r *discovery.Root) (n int) {
	for _, s := range r.Skills {
		n += len(s.Instructions.Contents)
	}
	return n
}

const skill = "---\nname: s\ndescription: d\n---\nBODY"

func TestRead(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "r")
	write(t, root, map[string]string{
		".claude-plugin/plugin.json": `{"name":"demo","mcpServers":"./conf/m.json","apps":"../a"}`,
		"conf/m.json":                "M", ".app.json": "A",
		"s/SKILL.md": skill, "s/agents/openai.yaml": "policy: {}", ".git/x/SKILL.md": skill,
		"n/.codex-plugin/plugin.json": `{"name":"nested"}`, "n/t/SKILL.md": skill,
	})
	r := read(t, root)
	p := r.Plugin
	rig.Is(t, p.Manifest.Path+" "+p.MCP.Contents+p.Apps.Contents, root+"/.claude-plugin/plugin.json MA", "plugin")
	var skills []string
	for _, s := range r.Skills {
		skills = append(skills, strings.TrimPrefix(s.Instructions.Path, root)+fmt.Sprint(s.Metadata != nil))
	}
	rig.Is(t, strings.Join(skills, " "), "/.git/x/SKILL.mdfalse /n/t/SKILL.mdfalse /s/SKILL.mdtrue", "skills")
	rig.Is(t, len(r.Namespaces), 2, "namespaces")
	rig.Same(t, "troubles", []discovery.Trouble{discovery.NotDotSlash}, troubles(r))
	d := r.Describe(root)
	var names []string
	for _, s := range d.Skills {
		names = append(names, s.Name)
	}
	rig.Is(t, fmt.Sprint(names, d.DisplayName, d.IsPlugin), "[demo:s nested:s demo:s]demotrue", "names, name, plugin")
	rig.Is(t, len(read(t, root+"/.claude-plugin").Namespaces), 1, "namespaces of the folder of a manifest")
}

func TestReadNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{"f": ""})
	rig.Is(t, *read(t, dir+"/none").Failure, discovery.Warning{Trouble: discovery.NoRoot, Path: dir + "/none", Err: unix.ENOENT}, "missing")
	rig.Is(t, *read(t, dir+"/f").Failure, discovery.Warning{Trouble: discovery.NotDirectory, Path: dir + "/f"}, "a file")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	rig.Is(t, rig.Err(discovery.Read(ctx, fsops.Host{}, dir)), context.Canceled, "with a context that has ended")
}

// narrow has a part of the room for names and folders, so that few of them are too many.
type narrow struct {
	fsops.FS
	part uint64
}

func (n narrow) Walk(ctx context.Context, root string, o fsops.WalkOptions) (fsops.WalkResult, error) {
	o.MaxEntries /= n.part
	o.MaxDirectories /= n.part
	return n.FS.Walk(ctx, root, o)
}

// TestHostile: a root costs no more than its bounds, whatever is in it, and says what was
// left out. In push, names and folders that are too many are so for a hundredth of the room.
func TestHostile(t *testing.T) {
	t.Parallel()
	part := 100
	if rig.Runs(rig.Merge) {
		part = 1
	}
	for name, tt := range map[string]struct {
		make   func(t *testing.T, root string)
		skills int
		want   []discovery.Trouble
	}{
		"a gigabyte": {func(t *testing.T, root string) {
			write(t, root, map[string]string{"a/SKILL.md": ""})
			rig.Must(t, os.Truncate(root+"/a/SKILL.md", 1<<30))
		}, 1, []discovery.Trouble{discovery.TooLarge}},
		"more than a bundle": {func(t *testing.T, root string) {
			for i := range 17 {
				write(t, root, map[string]string{fmt.Sprintf("a%02d/SKILL.md", i): strings.Repeat("x", discovery.MaxFile)})
			}
		}, 16, []discovery.Trouble{discovery.NoRoom, discovery.NoRoom}},
		"links": {func(t *testing.T, root string) {
			for i := range 1000 {
				rig.Must(t, os.Symlink(root, fmt.Sprintf("%s/%d", root, i)))
			}
			for link, to := range map[string]string{"loop": "loop", "none": "/nonexistent", "proc": "/proc/self/ns", "dev": "/dev/zero"} {
				rig.Must(t, os.Symlink(to, root+"/"+link))
			}
			rig.Must(t, os.Mkdir(root+"/.codex-plugin", 0o755))
			// Not a regular file: it has no end.
			rig.Must(t, os.Symlink("/dev/zero", root+"/.codex-plugin/plugin.json"))
		}, 1, nil},
		"many names": {func(t *testing.T, root string) {
			for i := range 20_000/part + 1 {
				rig.Must(t, unix.Mknod(fmt.Sprintf("%s/f%d", root, i), unix.S_IFREG|0o600, 0))
			}
		}, 0, []discovery.Trouble{discovery.Truncated}},
		"names that are not UTF-8": {func(t *testing.T, root string) {
			write(t, root, map[string]string{"b\xff/SKILL.md": skill, "c\xff": ""})
		}, 1, []discovery.Trouble{discovery.NotScanned, discovery.NotScanned}},
		"no regular files": {func(t *testing.T, root string) {
			write(t, root, map[string]string{"z/agents/x": "", ".codex-plugin/x": "", ".claude-plugin/x": "", ".cursor-plugin/plugin.json": `{"mcpServers":"./fifo","apps":"./z"}`})
			socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			rig.Must(t, err)
			defer unix.Close(socket)
			rig.Must(t, os.Mkdir(root+"/a", 0o755), os.Mkdir(root+"/b", 0o755),
				unix.Mkfifo(root+"/a/SKILL.md", 0o600), unix.Mkfifo(root+"/z/agents/openai.yaml", 0o600), unix.Mkfifo(root+"/fifo", 0o600),
				unix.Bind(socket, &unix.SockaddrUnix{Name: root + "/b/SKILL.md"}),
				os.Symlink("../b/SKILL.md", root+"/.codex-plugin/plugin.json"), os.Symlink("/dev/zero", root+"/.claude-plugin/plugin.json"))
		}, 1, nil},
		"files of the kernel": {func(t *testing.T, root string) {
			if _, err := os.Stat("/proc/kallsyms"); err != nil {
				t.Skip(err)
			}
			// They say that they are empty. One has megabytes, the other bytes that are no text.
			write(t, root, map[string]string{".codex-plugin/plugin.json": `{"mcpServers":"./symbols","apps":"./environ"}`})
			other := exec.CommandContext(t.Context(), "sleep", "100000")
			rig.Must(t, other.Start())
			t.Cleanup(func() { _ = other.Wait() })
			auxv := fmt.Sprintf("/proc/%d/auxv", other.Process.Pid)
			rig.Until(t, "the kernel has started the program", func() bool { return len(rig.Value(os.ReadFile(auxv))) > 0 })
			rig.Must(t, errors.Join(os.Symlink("/proc/kallsyms", root+"/symbols"), os.Symlink(auxv, root+"/environ")))
		}, 1, []discovery.Trouble{discovery.TooLarge, discovery.NotText}},
		"manifests that point outside": {func(t *testing.T, root string) {
			write(t, root, map[string]string{
				".codex-plugin/plugin.json":   `{"mcpServers":"./a/../../x","apps":"./` + strings.Repeat("é/", 5000) + `"}`,
				"n/.codex-plugin/plugin.json": `{"name":` + strings.Repeat("[", 200_000), "n/SKILL.md": skill,
			})
		}, 2, []discovery.Trouble{discovery.Outside, discovery.NotInspected}},
		"files that nobody can name": {func(t *testing.T, root string) {
			write(t, root, map[string]string{".codex-plugin/plugin.json": `{"mcpServers":"./a\u0000b","apps":"./loop/x"}`})
			rig.Must(t, os.Symlink("loop", root+"/loop"))
		}, 1, []discovery.Trouble{discovery.NotInspected, discovery.NotInspected}},
		"many folders": {func(t *testing.T, root string) {
			for i := range 2000/part + 1 {
				rig.Must(t, os.Mkdir(fmt.Sprintf("%s/d%d", root, i), 0o755))
			}
		}, 0, []discovery.Trouble{discovery.Truncated}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := filepath.Join(t.TempDir(), "r")
			write(t, root, map[string]string{"z/SKILL.md": skill})
			tt.make(t, root)
			r := read(t, root)
			if strings.HasPrefix(name, "many ") {
				r = rig.Value(discovery.Read(t.Context(), narrow{fsops.Host{}, uint64(part)}, root))
			}
			rig.Is(t, len(r.Skills), tt.skills, "skills")
			rig.Same(t, "troubles", tt.want, troubles(r))
			rig.Is(t, size(r) <= discovery.MaxBundle, true, "%d bytes are few", size(r))
		})
	}
}

// TestChanging: a file that changes while it is read is read as something, within bounds.
func TestChanging(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, root, map[string]string{"SKILL.md": skill})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 300 {
			switch i % 3 {
			case 0:
				_ = os.Truncate(root+"/SKILL.md", discovery.MaxFile+1)
			case 1:
				_ = os.Remove(root + "/SKILL.md")
			case 2:
				_ = os.WriteFile(root+"/SKILL.md", []byte(skill), 0o600)
			}
		}
	}()
	for range 100 {
		n := size(read(t, root))
		rig.Is(t, n <= discovery.MaxFile, true, "%d bytes are few", n)
	}
	<-done
}

func TestLocations(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, folder := range []string{
		"mk/a/1.9.0", "mk/a/1.10.0-rc.1", "mk/a/1.10.0", "mk/b/1.0.0", "mk/b/local", "mk/c.d/abc", "mk/c.d/1.10.0", "mk/.e/1", "m k/f/1", "mk/g/..h",
		"mk/i/with blank", "mk/bad\xff/1",
	} {
		rig.Must(t, os.MkdirAll(filepath.Join(dir, "codex/plugins/cache", folder), 0o755))
	}
	write(t, dir, map[string]string{
		"codex/plugins/cache/file":                                   "",
		"codex/plugins/cache/mk/a/.codex-remote-plugin-install.json": `{"schema_version":1,"remote_plugin_id":" x "}`,
	})
	rig.Same(t, "locations", []string{
		"a@mk 1.10.0x", "b@mk local", "c.d@mk abc", "g@mk ..h", "codex-home-skills", "user-agent-skills", "system-skills", "incomplete",
	}, locations(discovery.Places{CodexHome: dir + "/codex", Home: dir + "/home", System: dir + "/etc"}))
	rig.Is(t, len(locations(discovery.Places{})), 0, "locations without places")
}

// locations are the places that are found, but for those below /dev/fd, which has what this process
// has open for other tests, and whether there may be more.
func locations(p discovery.Places) (found []string) {
	all, incomplete := p.Locations()
	for _, l := range all {
		if !strings.HasSuffix(l.ID, "@fds") {
			found = append(found, strings.TrimSpace(l.ID+" "+l.Version+l.RemoteID))
		}
	}
	if incomplete {
		found = append(found, "incomplete")
	}
	return found
}

// TestLocationsHostile: files beside plugins that have no end or are no files, and links that lead
// round, cost their plugins an id at most.
func TestLocationsHostile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cache := dir + "/plugins/cache/"
	install := "/.codex-remote-plugin-install.json"
	for _, plugin := range []string{"fifo", "zero", "folder", "large", "loop", "deep"} {
		rig.Must(t, os.MkdirAll(cache+"mk/"+plugin+"/1", 0o755))
	}
	write(t, cache+"mk", map[string]string{
		"large" + install: `{"schema_version":1,"remote_plugin_id":"x"}` + strings.Repeat(" ", 16<<10),
		"deep" + install:  `{"schema_version":1,"remote_plugin_id":"x","more":` + strings.Repeat("[", 8000) + strings.Repeat("]", 8000) + `}`,
	})
	rig.Must(t,
		unix.Mkfifo(cache+"mk/fifo"+install, 0o600), os.Symlink("/dev/zero", cache+"mk/zero"+install), os.Mkdir(cache+"mk/folder"+install, 0o755),
		os.Symlink(install[1:], cache+"mk/loop"+install),
		os.Symlink(".", cache+"again"), os.Symlink("round", cache+"round"), os.Symlink("/dev/fd", cache+"fds"), os.Symlink("1", cache+"mk/fifo/2"))
	rig.Same(t, "locations", []string{
		"again@again mk", "deep@mk 1", "fifo@mk 1", "folder@mk 1", "large@mk 1", "loop@mk 1", "mk@again zero", "zero@mk 1", "codex-home-skills", "incomplete",
	}, locations(discovery.Places{CodexHome: dir}))
}

// TestLocationsWait: links to fifos among the folders of plugins hold nobody up.
func TestLocationsWait(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	cache := home + "/plugins/cache/"
	rig.Must(t, os.MkdirAll(cache+"market/plugin/1", 0o700), unix.Mkfifo(home+"/fifo", 0o600),
		os.Symlink(home+"/fifo", cache+"fifo"), os.Symlink(home+"/fifo", cache+"market/fifo"))
	rig.Same(t, "locations", []string{"plugin@market 1", "codex-home-skills"}, locations(discovery.Places{CodexHome: home}))
}

// opens counts what is opened of a file system.
type opens struct {
	fsops.FS
	paths []string
}

func (o *opens) OpenRead(ctx context.Context, path string, links fsops.Links) (int, error) {
	o.paths = append(o.paths, path)
	return o.FS.OpenRead(ctx, path, links)
}

// TestReadMetadata: metadata is looked for where there is a folder for it, however that is made,
// and nowhere else. One that cannot be had is still told.
func TestReadMetadata(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, root, map[string]string{
		"none/SKILL.md": skill, "with/SKILL.md": skill, "with/agents/openai.yaml": "a: 1", "linked/SKILL.md": skill,
		"file/SKILL.md": skill, "file/agents": "", "loop/SKILL.md": skill, ".codex-plugin/plugin.json": "{}",
	})
	for name, to := range map[string]string{"linked/agents": "../with/agents", "loop/agents": "agents"} {
		rig.Must(t, os.Symlink(to, filepath.Join(root, name)))
	}
	o := &opens{FS: fsops.Host{}}
	r, err := discovery.Read(t.Context(), o, root)
	rig.Must(t, err)
	var with, asked []string
	for _, s := range r.Skills {
		if s.Metadata != nil {
			with = append(with, filepath.Base(filepath.Dir(s.Instructions.Path)))
		}
	}
	for _, path := range o.paths {
		if filepath.Base(path) == "openai.yaml" {
			asked = append(asked, filepath.Base(filepath.Dir(filepath.Dir(path))))
		}
	}
	rig.Is(t, fmt.Sprintf("%v %v %v %d", with, asked, troubles(r), len(r.Skills)),
		fmt.Sprintf("[linked with] [file linked loop with] [%v] 5", discovery.NotInspected), "metadata, where it was looked for, troubles, skills")
}

// BenchmarkRead reads a root of 200 skills with metadata.
func BenchmarkRead(b *testing.B) {
	root := b.TempDir()
	for i := range 200 {
		dir := fmt.Sprintf("skills/s%d/", i)
		write(b, root, map[string]string{dir + "SKILL.md": skill + strings.Repeat("x", 4096), dir + "agents/openai.yaml": "policy: {}"})
	}
	b.ReportAllocs()
	for b.Loop() {
		if r := read(b, root); len(r.Skills) != 200 {
			b.Fatal(len(r.Skills))
		}
	}
}
