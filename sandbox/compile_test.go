package sandbox

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
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

// asked makes a profile of lines such as "skip read :roots .git" for an entry, and "private /own".
func asked(lines []string) (p Profile) {
	for _, line := range lines {
		words := strings.Fields(line)
		switch what, rest := words[0], words[1:]; what {
		case "disabled":
			p.Kind = Disabled
		case "external":
			p.Kind = External
		case "unrestricted":
			p.Unrestricted = true
		case "network":
			p.Network = NetworkEnabled
		case "managed":
			p.Network = NetworkManaged
		case "sockets":
			p.Sockets = rest
		case "devices":
			p.Devices = rest
		case "cwd":
			p.Cwd = rest[0]
		case "tmpdir":
			p.TmpDir = rest[0]
		case "workspace":
			p.WorkspaceRoots = rest
		case "tools":
			p.Tools = rest
		case "private":
			p.Private = rest
		case "folders":
			p.PrivateFolders = rest
		case "kept":
			p.KeepPrivate = true
		case "skip":
			p.Entries = append(p.Entries, skip(entryOf(rest)))
		default:
			p.Entries = append(p.Entries, entryOf(words))
		}
	}
	return p
}

func entryOf(words []string) Entry {
	access := Access(slices.Index([]string{"hidden", "denied", "read", "write"}, words[0]))
	place := PlacePath
	if i := slices.Index([]string{":glob", ":root", ":minimal", ":cwd", ":roots", ":tmpdir", ":tmp", ":unknown"}, words[1]); i >= 0 {
		place, words = PlaceGlob+Place(i), words[1:]
	}
	return entry(place, access, words[1:]...)
}

// TestCompile has its cases in testdata.
func TestCompile(t *testing.T) {
	t.Parallel()
	for _, c := range sandboxtest.Cases(t, "testdata/compile.txt", 2) {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			p := rig.Value(asked(c.Parts[0]).Compile())
			if c.Name == "private as it was asked for" {
				// The private path was a writable root, which has protected names:
				// their rules have to go with the rule of the root.
				protects := func(r Rule) bool { return r.Origin == Protected }
				rig.Is(t, slices.ContainsFunc(p.Rules, protects), false, "protected names of what is private:\n%v", p)
			}
			rig.Same(t, "what came of it", c.Parts[1], lines(p))
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
		{"replaceable glob", Profile{Entries: []Entry{{Place: PlaceGlob, Access: Denied, Path: "/a/*", Replaceable: true}}}, "entry 0: only a denied path is replaceable"},
		{"replaceable grant", Profile{Entries: []Entry{{Path: "/a", Access: Read, Replaceable: true}}}, "entry 0: only a denied path is replaceable"},
		{"no access", Profile{Entries: []Entry{{Place: PlaceRoot}}}, "entry 0: access 0"},
		{"unknown access", Profile{Entries: []Entry{{Access: Write + 1}}}, "access 4"},
		{"unknown place", Profile{Entries: []Entry{{Place: PlaceUnknown + 1, Access: Read}}}, "place 9"},
		{"unknown kind", Profile{Kind: Disabled + 1}, "kind 3"},
		{"unknown network", Profile{Network: NetworkManaged + 1}, "network 3"},
		{"sockets of another network", Profile{Network: NetworkEnabled, AllUnixSockets: true}, "network enabled does not have all UNIX sockets"},
		{"relative socket", Profile{Sockets: []string{"x"}}, `socket: path "x" is not absolute`},
		{"relative device, everything else writable", Profile{Kind: External, Devices: []string{"x"}}, `device: path "x"`},
		{"many sockets", Profile{Sockets: make([]string, maxNamed+1)}, "more than 256 sockets"},
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
