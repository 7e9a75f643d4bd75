package sandbox

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// lines prints the rules of a policy, one a line, and of the protected ones only
// how many there are; then its network unless that is restricted, and that all can be read.
func lines(p *Policy) []string {
	var out []string
	protected := 0
	for line := range strings.Lines(p.String()) {
		if strings.HasSuffix(line, "(protected)\n") {
			protected++
			continue
		}
		if line != "network  restricted\n" {
			out = append(out, strings.Join(strings.Fields(line), " "))
		}
	}
	if protected > 0 {
		out = append(out, fmt.Sprintf("%d protected", protected))
	}
	if p.FullRead {
		out = append(out, "all is read")
	}
	return out
}

func entry(place Place, access Access, path ...string) Entry {
	return Entry{Place: place, Access: access, Path: strings.Join(path, "")}
}

func skip(e Entry) Entry {
	e.SkipMissing = true
	return e
}

func TestCompile(t *testing.T) {
	t.Parallel()
	root := entry(PlaceRoot, Read)
	for _, tt := range []struct {
		name    string
		profile Profile
		want    []string
	}{
		{"disabled", Profile{Kind: Disabled}, []string{"network enabled", "files unrestricted"}},
		{"network", Profile{Network: NetworkEnabled}, []string{"network enabled"}},
		{"external with a network", Profile{Kind: External, Network: NetworkEnabled}, []string{"network enabled", "files unrestricted"}},
		{"denied", Profile{Entries: []Entry{root, entry(PlacePath, Denied, "/r")}}, []string{"read /", "denied /r"}},
		{"external", Profile{Kind: External}, []string{"files unrestricted"}},
		{"unrestricted", Profile{Unrestricted: true}, []string{"files unrestricted"}},
		{"root write", Profile{Entries: []Entry{entry(PlaceRoot, Write)}}, []string{"files unrestricted"}},
		{
			"root write and less that is write", Profile{Entries: []Entry{entry(PlaceRoot, Write), root, entry(PlacePath, Write, "/repo"),
				entry(PlaceMinimal, Read), entry(PlaceGlob, Write, "/x/*")}, Private: []string{"/own"}},
			[]string{"files unrestricted"},
		},
		{
			"root write, and what is private kept", Profile{Entries: []Entry{entry(PlaceRoot, Write)}, Tools: []string{"/t"}, Private: []string{"/own"}, KeepPrivate: true},
			[]string{"write /", "denied /own (private) (hidden if missing)", "all is read"},
		},
		{
			"unrestricted, and what is private kept", Profile{Unrestricted: true, Private: []string{"/own"}, KeepPrivate: true},
			[]string{"files unrestricted"},
		},
		{"nothing", Profile{}, nil},
		{
			"tools", Profile{Tools: []string{"/run/t", "/hidden/p", "/repo/bin/p", "/x/denied"}, Entries: []Entry{
				entry(PlacePath, Read, "/run"), entry(PlacePath, Write, "/repo"), entry(PlacePath, Denied, "/x")}},
			[]string{"read /hidden/p (minimal) (hidden if missing)", "write /repo", "read /run", "denied /x", "6 protected"},
		},
		{"tools where everything is written", Profile{Tools: []string{"/t"}, Entries: []Entry{entry(PlaceRoot, Write)}}, []string{"files unrestricted"}},
		{"read only", Profile{Entries: []Entry{root}}, []string{"read /", "all is read"}},
		{
			"root write narrowed", Profile{Entries: []Entry{entry(PlaceRoot, Write), entry(PlacePath, Denied, "/x")}},
			[]string{"write /", "denied /x", "4 protected"},
		},
		{
			"root write narrowed by what may be missing", Profile{Entries: []Entry{entry(PlaceRoot, Write), skip(entry(PlacePath, Read, "/x"))}},
			[]string{"write /", "read /x (hidden if missing)", "4 protected", "all is read"},
		},
		{
			"root write narrowed by a glob", Profile{Entries: []Entry{entry(PlaceRoot, Write), entry(PlaceGlob, Denied, "/x/*")}},
			[]string{"write /", "denied files * in /x", "4 protected"},
		},
		{
			"pseudo file systems", Profile{Entries: []Entry{
				root, entry(PlacePath, Write, "/proc"), entry(PlacePath, Write, "/proc/sys"), entry(PlacePath, Write, "/sys/fs"),
				entry(PlacePath, Write, "/dev"), entry(PlacePath, Write, "/dev/pts"), entry(PlacePath, Write, "/dev/shm/x"), entry(PlacePath, Write, "/system"),
				skip(entry(PlacePath, Denied, "/sys/x")), entry(PlacePath, Write, "/sys/x"),
			}},
			[]string{"read /", "write /dev", "write /dev/pts", "write /dev/shm/x", "read /proc", "read /proc/sys",
				"read /sys/fs", "denied /sys/x (read if missing)", "write /system", "8 protected"},
		},
		{
			"pseudo file systems of a writable root", Profile{Entries: []Entry{entry(PlaceRoot, Write), entry(PlacePath, Write, "/proc")}},
			[]string{"files unrestricted"},
		},
		{
			"workspace write as clients send it", Profile{
				Entries: []Entry{
					root, entry(PlaceProjectRoots, Write), entry(PlaceSlashTmp, Write), entry(PlaceTmpDir, Write),
					skip(entry(PlaceProjectRoots, Read, ".git")), skip(entry(PlaceProjectRoots, Read, ".aws")),
				},
				Cwd: "/repo/sub", WorkspaceRoots: []string{"/repo", "/other"}, TmpDir: "/var/tmp/x",
			},
			[]string{"read /", "write /other", "write /repo", "write /tmp", "write /var/tmp/x", "16 protected", "all is read"},
		},
		{
			"project roots without workspace roots", Profile{Entries: []Entry{root, entry(PlaceProjectRoots, Write)}, Cwd: "/repo"},
			[]string{"read /", "all is read"},
		},
		{
			"subpaths that leave", Profile{
				Entries: []Entry{
					entry(PlaceProjectRoots, Write, "../x"), entry(PlaceProjectRoots, Write, "/x"), entry(PlaceProjectRoots, Read, "a/../b"),
					entry(PlaceProjectRoots, Read, "a/./b/"),
				},
				Cwd: "/", WorkspaceRoots: []string{"/repo"},
			},
			[]string{"read /repo/a/b"},
		},
		{
			"what grants nothing", Profile{
				Entries: []Entry{
					entry(PlaceCwd, Write), entry(PlaceUnknown, Write, "/x"), entry(PlaceMinimal, Write), entry(PlaceMinimal, Denied),
					entry(PlaceTmpDir, Write), entry(PlaceGlob, Read, "/x/**"),
				},
				Cwd: "/repo", TmpDir: "tmp",
			},
			nil,
		},
		{
			"one path", Profile{Entries: []Entry{
				entry(PlacePath, Write, "/a"), entry(PlacePath, Read, "/a"),
				entry(PlacePath, Write, "/b"), entry(PlacePath, Denied, "/b/"), entry(PlacePath, Read, "/b"),
			}},
			[]string{"write /a", "denied /b", "4 protected"},
		},
		{
			"protected by name", Profile{Entries: []Entry{
				entry(PlacePath, Write, "/r"), entry(PlacePath, Write, "/r/.git"), entry(PlacePath, Denied, "/r/.aws"),
				entry(PlacePath, Read, "/r/.codex"),
			}},
			[]string{"write /r", "denied /r/.aws", "write /r/.git", "2 protected"},
		},
		{
			"protected by name, if it is there", Profile{Entries: []Entry{
				entry(PlacePath, Write, "/r"), skip(entry(PlacePath, Write, "/r/.git")), skip(entry(PlacePath, Denied, "/r/.aws")),
				skip(entry(PlacePath, Read, "/r/.codex")),
			}},
			[]string{"write /r", "denied /r/.aws (read if missing)", "write /r/.git (read if missing)", "2 protected"},
		},
		{
			"skipping beside not skipping", Profile{Entries: []Entry{
				skip(entry(PlacePath, Denied, "/a")), entry(PlacePath, Read, "/a"),
				skip(entry(PlacePath, Read, "/b")), entry(PlacePath, Read, "/b"),
				skip(entry(PlacePath, Read, "/c")), entry(PlacePath, Denied, "/c"),
			}},
			[]string{"denied /a (read if missing)", "read /b", "denied /c"},
		},
		{
			"nested roots", Profile{Entries: []Entry{
				entry(PlacePath, Write, "/r"), entry(PlacePath, Denied, "/r/a"), entry(PlacePath, Write, "/r/a/b"),
			}},
			[]string{"write /r", "denied /r/a", "write /r/a/b", "8 protected"},
		},
		{
			"minimal", Profile{Entries: []Entry{entry(PlaceMinimal, Read), entry(PlacePath, Denied, "/etc"), entry(PlacePath, Write, "/lib64")}},
			[]string{
				"read /bin (minimal) (hidden if missing)", "denied /etc", "read /lib (minimal) (hidden if missing)", "write /lib64",
				"read /nix/store (minimal) (hidden if missing)", "read /run/current-system/sw (minimal) (hidden if missing)",
				"read /sbin (minimal) (hidden if missing)", "read /usr (minimal) (hidden if missing)", "4 protected",
			},
		},
		{
			"minimal where all can be read", Profile{Entries: []Entry{root, entry(PlaceMinimal, Read)}},
			[]string{"read /", "all is read"},
		},
		{
			"private", Profile{
				Entries: []Entry{root, entry(PlacePath, Write, "/run"), entry(PlacePath, Write, "/run/agent/x")},
				Private: []string{"/run/agent", "/run/agent"},
			},
			[]string{"read /", "write /run", "denied /run/agent (private) (hidden if missing)", "4 protected", "all is read"},
		},
		{
			"private out of view", Profile{
				Entries: []Entry{entry(PlacePath, Read, "/usr"), entry(PlacePath, Read, "/run/agent/x"), entry(PlacePath, Denied, "/opt")},
				Private: []string{"/run/agent", "/opt/x"},
			},
			[]string{"denied /opt", "read /usr"},
		},
		{
			"private as it was asked for", Profile{Entries: []Entry{root, entry(PlacePath, Write, "/run/agent")}, Private: []string{"/run/agent/"}},
			[]string{"read /", "denied /run/agent (private) (hidden if missing)", "all is read"},
		},
		{
			"private folders", Profile{
				Entries: []Entry{root, entry(PlacePath, Write, "/w"), entry(PlacePath, Read, "/named/x")}, Cwd: "/here/in",
				PrivateFolders: []string{"/run/agent/", "/w/in", "/named", "/here"},
			},
			[]string{"read /", "read /named/x", "denied /run/agent (private) (hidden if missing)", "write /w", "4 protected", "all is read"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := rig.Value(tt.profile.Compile())
			if tt.name == "private as it was asked for" {
				// The private path was a writable root, which has protected names:
				// their rules have to go with the rule of the root.
				protects := func(r Rule) bool { return r.Origin == Protected }
				rig.Is(t, slices.ContainsFunc(p.Rules, protects), false, "protected names of what is private:\n%v", p)
			}
			rig.Same(t, "what came of it", tt.want, lines(p))
		})
	}
}

func TestCompileNeedsCwd(t *testing.T) {
	t.Parallel()
	for _, e := range []Entry{
		entry(PlaceGlob, Denied, "**/*.env"), entry(PlaceGlob, Read, "x"), entry(PlaceProjectRoots, Read),
		entry(PlaceProjectRoots, Read, "../x"), entry(PlaceCwd, Read),
	} {
		p := Profile{Entries: []Entry{e}, WorkspaceRoots: []string{"/repo"}}
		rig.Is(t, rig.Err(p.Compile()), ErrNeedsCwd, "%+v", e)
		p.Cwd = "/repo"
		rig.Is(t, rig.Err(p.Compile()), nil, "%+v", e)
	}
}

func TestCompileRefused(t *testing.T) {
	t.Parallel()
	many := slices.Repeat([]Entry{entry(PlaceRoot, Read)}, MaxEntries+1)
	var roots []string
	for i := range 200 {
		roots = append(roots, fmt.Sprint("/r", i))
	}
	var subpaths []Entry
	for i := range 100 {
		subpaths = append(subpaths, entry(PlaceProjectRoots, Read, fmt.Sprint("s", i)))
	}
	var globs []Entry
	for i := range 100 {
		globs = append(globs, entry(PlaceGlob, Denied, fmt.Sprintf("/repo/%d%s", i, strings.Repeat("?", 4000))))
	}
	for _, tt := range []struct {
		name    string
		profile Profile
		want    string
	}{
		{"relative path", Profile{Entries: []Entry{entry(PlaceRoot, Read), entry(PlacePath, Read, "x")}}, `entry 1: path "x" is not absolute`},
		{"dots", Profile{Entries: []Entry{entry(PlacePath, Denied, "/a/../b")}}, `entry 0: path "/a/../b" has a ".."`},
		{"nul", Profile{Entries: []Entry{entry(PlacePath, Denied, "/a\x00")}}, "has a NUL"},
		{"long path", Profile{Entries: []Entry{entry(PlacePath, Read, "/"+strings.Repeat("a", MaxPath))}}, "longer than"},
		{"long subpath", Profile{Entries: []Entry{entry(PlaceProjectRoots, Read, strings.Repeat("a", MaxPath))}, Cwd: "/", WorkspaceRoots: []string{"/r"}}, "longer than"},
		{"many entries", Profile{Entries: many}, "more than 4096 entries"},
		{"many paths", Profile{Entries: subpaths, Cwd: "/", WorkspaceRoots: roots}, "more than 16384 paths"},
		{"much to match", Profile{Entries: globs}, "more to match"},
		{"no access", Profile{Entries: []Entry{{Place: PlaceRoot}}}, "entry 0: access 0"},
		{"unknown access", Profile{Entries: []Entry{{Access: Write + 1}}}, "access 4"},
		{"unknown place", Profile{Entries: []Entry{{Place: PlaceUnknown + 1, Access: Read}}}, "place 9"},
		{"unknown kind", Profile{Kind: Disabled + 1}, "kind 3"},
		{"unknown network", Profile{Network: NetworkManaged + 1}, "network 3"},
		{"sockets of another network", Profile{Network: NetworkEnabled, AllUnixSockets: true}, "network enabled does not have all UNIX sockets"},
		{"relative private, everything else writable", Profile{Kind: Disabled, Network: NetworkManaged, Private: []string{"x"}}, `private path: path "x"`},
		{"glob depth", Profile{GlobDepth: -1}, "depth -1"},
		{"relative root", Profile{WorkspaceRoots: []string{"/", "x"}}, `workspace root 1: path "x" is not absolute`},
		{"relative cwd", Profile{Cwd: "x"}, `cwd: path "x" is not absolute`},
		{"relative private", Profile{Private: []string{"x"}}, `private path: path "x"`},
		{"tmpdir", Profile{Entries: []Entry{entry(PlaceTmpDir, Write)}, TmpDir: "/a/../b"}, "temporary directory"},
		{"glob", Profile{Entries: []Entry{entry(PlaceGlob, Denied, "/**/*.env")}}, `entry 0: glob "/**/*.env" has no fixed prefix`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := rig.Err(tt.profile.Compile())
			rig.Is(t, strings.Contains(fmt.Sprint(err), tt.want), true, "%q is in %v", tt.want, err)
		})
	}
}

// TestCompileOrder: the order of entries means nothing.
func TestCompileOrder(t *testing.T) {
	t.Parallel()
	p := Profile{
		Entries: []Entry{
			entry(PlaceRoot, Read), entry(PlacePath, Write, "/r"), skip(entry(PlacePath, Denied, "/r/.git")), entry(PlacePath, Read, "/r/.git"),
			skip(entry(PlacePath, Write, "/r/.git")), entry(PlaceMinimal, Read), entry(PlaceGlob, Denied, "/r/*"), entry(PlaceGlob, Denied, "/r/a*"),
		},
		Private: []string{"/r/own", "/b"},
	}
	want := rig.Value(p.Compile())
	for range len(p.Entries) {
		p.Entries = append(p.Entries[1:], p.Entries[0])
		slices.Reverse(p.Private)
		got := rig.Value(p.Compile())
		rig.Is(t, got.Key(), want.Key(), "got\n%vwant\n%v", got, want)
	}
}

// TestCompileBoundsBytes: a few entries and roots can become many long paths,
// which Compile bounds in bytes.
func TestCompileBoundsBytes(t *testing.T) {
	t.Parallel()
	p := Profile{Cwd: "/"}
	for i := range 500 {
		p.WorkspaceRoots = append(p.WorkspaceRoots, fmt.Sprintf("/%d/%s", i, strings.Repeat("r", 800)))
	}
	p.Entries = []Entry{{Place: PlaceProjectRoots, Path: strings.Repeat("s", 250), Access: Read}}
	rig.Is(t, rig.Err(p.Compile()), nil, "half a mebibyte")
	p.Entries = append(p.Entries, Entry{Place: PlaceProjectRoots, Path: "deep/" + strings.Repeat("x", 3000), Access: Read})
	err := rig.Err(p.Compile())
	rig.Is(t, strings.Contains(fmt.Sprint(err), "bytes of paths"), true, "two mebibytes: %v", err)
}
