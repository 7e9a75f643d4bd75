package sandbox

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/execagent/execagent/sandbox/hold"
	"github.com/execagent/execagent/sandbox/internal/pathname"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// show prints a plan without what is the same for all: a line for each step
// with what is made in it.
func (v *viewPlan) show() string {
	var b strings.Builder
	spots := func(all []spot) {
		for _, s := range all {
			switch {
			case s.link != "":
				fmt.Fprintf(&b, " %s->%s", s.path, s.link)
			case s.dir:
				fmt.Fprintf(&b, " %s/", s.path)
			default:
				fmt.Fprintf(&b, " %s", s.path)
			}
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "base %s", v.base)
	spots(v.inside)
	names := [...]string{"bindWrite", "bindRead", "seal", "pin", "deny", "hollow", "mute", "devices", "procfs"}
	for _, s := range v.steps {
		if pathname.Below(s.path, "/sys") && s.do == hollow && s.optional {
			continue
		}
		fmt.Fprintf(&b, "%s %s", names[s.do], s.path)
		if s.optional {
			b.WriteString("?")
		}
		spots(s.inside)
	}
	return b.String()
}

func TestPlanView(t *testing.T) {
	t.Parallel()
	read, write := Rule{Path: "/", Access: Read}, Rule{Path: "/repo", Access: Write}
	tests := []struct {
		name    string
		rules   []Rule
		links   []Link
		missing []hold.Missing
		sights  sights
		// kinds: a path is a directory, "path!" an empty one, "path=" a file.
		kinds string
		want  string
	}{
		{name: "read-only", rules: []Rule{read}, kinds: "/", want: "base read\ndevices /dev\nprocfs /proc\n"},
		{name: "nothing", want: "base hidden /dev/ /proc/\ndevices /dev\nprocfs /proc\n"},
		{name: "workspace", kinds: "/ /repo /repo/.git /repo/.codex! /repo/.aws /repo/.agents= /single=",
			rules: []Rule{read, write, {Path: "/repo/.git", Access: Read}, {Path: "/repo/.codex", Access: Read},
				{Path: "/repo/.aws", Access: Read}, {Path: "/repo/.agents", Access: Read}, {Path: "/single", Access: Write}, {Path: "/none", Access: Write}},
			missing: []hold.Missing{{Parent: "/repo", Name: ".aws", Dir: true}},
			want: "base read\ndevices /dev\nprocfs /proc\nbindWrite /repo\nbindWrite /single\n" +
				"seal /repo/.agents\nhollow /repo/.aws\nhollow /repo/.codex\nseal /repo/.git\n"},
		{name: "carve-outs are pinned, from the top", kinds: "/ /repo /repo/a/b/c /repo/x/y=",
			rules: []Rule{read, write, {Path: "/repo/a/b/c", Access: Read}, {Path: "/repo/x/y", Access: Denied}},
			want:  "base read\ndevices /dev\nprocfs /proc\nbindWrite /repo\npin /repo/a\npin /repo/x\npin /repo/a/b\ndeny /repo/x/y\nseal /repo/a/b/c\n"},
		{name: "re-opened", kinds: "/ /repo /repo/a /repo/a/b /repo/a/c/d= /repo/r /repo/r/w",
			rules: []Rule{read, write, {Path: "/repo/a", Access: Denied}, {Path: "/repo/a/b", Access: Write}, {Path: "/repo/a/c/d", Access: Read},
				{Path: "/repo/r", Access: Read}, {Path: "/repo/r/w", Access: Write}},
			want: "base read\ndevices /dev\nprocfs /proc\nbindWrite /repo\ndeny /repo/a /repo/a/b/ /repo/a/c/d\nseal /repo/r\n" +
				"bindWrite /repo/a/b\nbindWrite /repo/r/w\nbindRead /repo/a/c/d\n"},
		{name: "what says nothing new costs nothing", kinds: "/ /repo /repo/n /usr",
			rules: []Rule{read, write, {Path: "/repo/n", Access: Write}, {Path: "/usr", Access: Read}},
			want:  "base read\ndevices /dev\nprocfs /proc\nbindWrite /repo\n"},
		{name: "minimal", kinds: "/usr /repo /repo/v /deny= /deny2",
			rules: []Rule{{Path: "/usr", Access: Read}, {Path: "/repo", Access: Read}, {Path: "/repo/v", Access: Denied}, {Path: "/deny", Access: Denied},
				{Path: "/deny2", Access: Denied}, {Path: "/absent", Access: Read}},
			links: []Link{{Path: "/bin", Target: "usr/bin"}, {Path: "/deny2/l", Target: "x"}},
			want: "base hidden /bin->usr/bin /deny /deny2/ /dev/ /proc/ /repo/ /usr/\n" +
				"deny /deny\ndeny /deny2 /deny2/l->x\ndevices /dev\nprocfs /proc\nbindRead /repo\nbindRead /usr\ndeny /repo/v\n"},
		{name: "whole root", kinds: "/ /x", rules: []Rule{{Path: "/", Access: Write}, {Path: "/x", Access: Denied}, {Path: "/proc", Access: Write}},
			want: "base write\ndevices /dev\nprocfs /proc\nseal /sys?\ndeny /x\n"},
		{name: "pseudo file systems",
			rules: []Rule{read, {Path: "/dev/kvm", Access: Write}, {Path: "/dev/shm/w", Access: Write}, {Path: "/dev/shm/p", Access: Denied},
				{Path: "/proc/self", Access: Denied}, {Path: "/sys/x", Access: Write}},
			kinds: "/ /dev/kvm= /dev/shm/w /dev/shm/p /sys/x",
			want:  "base read\ndevices /dev /dev/shm/w/\nprocfs /proc\ndeny /proc/self?\nbindWrite /dev/shm/w\n"},
		{name: "pseudo file systems denied", rules: []Rule{read, {Path: "/dev", Access: Denied}, {Path: "/proc", Access: Denied}}, kinds: "/ /dev /proc",
			want: "base read\ndeny /dev\ndeny /proc\n"},
		{name: "placeholder above a rule", rules: []Rule{read, write, {Path: "/repo/a/b", Access: Denied}}, kinds: "/ /repo /repo/a=",
			missing: []hold.Missing{{Parent: "/repo", Name: "a"}},
			want:    "base read\ndevices /dev\nprocfs /proc\nbindWrite /repo\nseal /repo/a\n"},
		{name: "protected names of a missing root", rules: []Rule{read, write, {Path: "/repo/n", Access: Write}, {Path: "/repo/n/.git", Access: Read}},
			kinds: "/ /repo", want: "base read\ndevices /dev\nprocfs /proc\nbindWrite /repo\n"},
		{name: "globs and sockets", rules: []Rule{read, write, {Path: "/repo/w.env", Access: Write}, {Path: "/hid", Access: Denied}},
			kinds: "/ /repo /repo/w.env= /hid",
			sights: sights{globbed: []string{"/hid/x.env", "/repo/d/x.env", "/repo/w.env"},
				sockets: []string{"/dev/log", "/hid/s", "/repo/s", "/run/s", "/run/user/7/s"}, runtimeDir: "/run/user/7"},
			want: "base read\ndevices /dev\ndeny /hid\nprocfs /proc\nbindWrite /repo\npin /repo/d\ndeny /repo/w.env\nmute /run/s?\n" +
				"deny /repo/d/x.env\nhollow /run/user/7?\n"},
		{name: "what a glob denies may be gone", rules: []Rule{read}, kinds: "/",
			sights: sights{globbed: []string{"/dev/x", "/dev/shm/x", "/f", "/sys/x"}},
			want:   "base read\ndevices /dev\ndeny /f\nprocfs /proc\ndeny /sys/x?\n"},
		{name: "aliases of what is private", rules: []Rule{read, write, {Path: "/own", Access: Denied}, {Path: "/repo/o/x", Access: Read}},
			kinds: "/ /repo /repo/o /own /hid /mnt/o= /repo/o/x", sights: sights{aliases: []string{"/mnt/o", "/own/o", "/repo/o"}},
			want: "base read\ndevices /dev\ndeny /own\nprocfs /proc\nbindWrite /repo\ndeny /mnt/o\ndeny /repo/o\n"},
		{name: "granted below the runtime directory", rules: []Rule{read, {Path: "/run/user/7/r", Access: Read}, {Path: "/run/user/7/w", Access: Write}},
			kinds: "/ /run/user/7/r /run/user/7/w", sights: sights{runtimeDir: "/run/user/7"},
			want: "base read\ndevices /dev\nprocfs /proc\nhollow /run/user/7? /run/user/7/r/ /run/user/7/w/\nbindRead /run/user/7/r\nbindWrite /run/user/7/w\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.sights.kinds = map[string]objectKind{}
			for name := range strings.FieldsSeq(tt.kinds) {
				kind := directory
				switch name[len(name)-1] {
				case '=':
					kind, name = file, name[:len(name)-1]
				case '!':
					kind, name = emptyDirectory, name[:len(name)-1]
				}
				tt.sights.kinds[name] = kind
			}
			p := &Policy{Confined: true, Rules: tt.rules, Links: tt.links}
			plan, err := planView(&Resolved{Policy: p, Missing: tt.missing}, tt.sights)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, plan.show()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPlanViewRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		rules   []Rule
		missing []hold.Missing
		kinds   map[string]objectKind
	}{
		{"nothing holds it", []Rule{{Path: "/repo/.git", Access: Read}}, nil, nil},
		{"nothing holds it, deeper", []Rule{{Path: "/repo/a/b", Access: Denied}}, nil, nil},
		{"nothing holds it below a denial", []Rule{{Path: "/repo/a", Access: Write}, {Path: "/repo/a/b", Access: Denied}}, nil,
			map[string]objectKind{"/repo/a": directory}},
		{"the placeholder is gone", []Rule{{Path: "/repo/.git", Access: Read}}, []hold.Missing{{Parent: "/repo", Name: ".git", Dir: true}}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			kinds := map[string]objectKind{"/": directory, "/repo": directory}
			maps.Copy(kinds, tt.kinds)
			p := &Policy{Confined: true, Rules: append([]Rule{{Path: "/", Access: Read}, {Path: "/repo", Access: Write}}, tt.rules...)}
			if plan, err := planView(&Resolved{Policy: p, Missing: tt.missing}, sights{kinds: kinds}); err == nil {
				t.Errorf("planned\n%s", plan.show())
			}
		})
	}
}

// Whatever the rules are, looking at the steps as the kernel would gives each
// path the access that the policy says.
func TestPlanViewMeansThePolicy(t *testing.T) {
	t.Parallel()
	name := rapid.Custom(func(t *rapid.T) string {
		return "/" + strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b"}), 1, 4).Draw(t, "names"), "/")
	})
	rapid.Check(t, func(t *rapid.T) {
		byPath := map[string]Access{}
		if base := rapid.SampledFrom([]Access{Hidden, Read, Write}).Draw(t, "base"); base != Hidden {
			byPath["/"] = base
		}
		for range rapid.IntRange(0, 6).Draw(t, "rules") {
			byPath[name.Draw(t, "path")] = rapid.SampledFrom([]Access{Denied, Read, Write}).Draw(t, "access")
		}
		p := &Policy{Confined: true}
		kinds := map[string]objectKind{"/": directory}
		for path, access := range byPath {
			p.Rules = append(p.Rules, Rule{Path: path, Access: access})
			kinds[path] = directory
		}
		plan, err := planView(&Resolved{Policy: p}, sights{kinds: kinds})
		if err != nil {
			t.Fatal(err)
		}
		at := name.Draw(t, "looked at")
		got, want := plan.access(at), accesses(byPath).at(at)
		if got != want {
			t.Fatalf("%s is %s, want %s; rules %v\n%s", at, got, want, byPath, plan.show())
		}
		for dir := pathname.Parent(at); byPath[at] != Hidden && want < Write && dir != "/"; dir = pathname.Parent(dir) {
			if accesses(byPath).at(dir) == Write && !plan.mounted(dir) {
				t.Fatalf("%s is no mount point above %s; rules %v\n%s", dir, at, byPath, plan.show())
			}
		}
	})
}

// access is what the last mount at or above a path makes of it.
func (v *viewPlan) access(name string) Access {
	got := v.base
	for _, s := range v.steps {
		if !pathname.Within(name, s.path) {
			continue
		}
		switch s.do {
		case bindWrite:
			got = Write
		case bindRead, seal:
			got = Read
		case deny:
			got = Denied
		}
	}
	return got
}

func (v *viewPlan) mounted(name string) bool {
	for _, s := range v.steps {
		if s.path == name {
			return true
		}
	}
	return false
}

func TestAliases(t *testing.T) {
	t.Parallel()
	mounts, err := parseMounts([]byte(`1 0 8:1 / / rw - ext4 /dev/a rw
2 1 8:1 /home /alias rw - ext4 /dev/a rw
3 1 8:1 /home/u/own/in /in\040side rw - ext4 /dev/a rw
4 1 8:1 /etc /other rw - ext4 /dev/a rw
5 1 8:2 /home /second rw - ext4 /dev/b rw
6 1 8:2 /x /home/u/m rw - ext4 /dev/b rw
7 1 8:2 / /all rw - ext4 /dev/b rw
`))
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		id   uint64
		want []string
	}{
		{"/home/u/own", 1, []string{"/alias/u/own", "/in side"}},
		{"/alias/u/own", 2, []string{"/home/u/own", "/in side"}},
		{"/home", 1, []string{"/alias", "/in side"}},
		{"/home/u/m/own", 6, []string{"/all/x/own"}},
		{"/home/u/m", 6, []string{"/all/x"}},
		{"/var", 1, nil},
		{"/var", 99, nil},
	}
	for _, tt := range tests {
		if diff := cmp.Diff(tt.want, aliases(mounts, tt.name, tt.id)); diff != "" {
			t.Errorf("%s in mount %d: %s", tt.name, tt.id, diff)
		}
	}
}
