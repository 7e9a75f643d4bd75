package view

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/execagent/execagent/internal/sandbox/pathname"
	"github.com/execagent/execagent/internal/sandbox/placeholder"
	"github.com/execagent/execagent/internal/sandbox/resolve"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// show prints a plan, a line for the base and for each step, with the spots in
// it. It leaves out the covers in /sys, which every plan has.
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
	read, write := sandbox.Rule{Path: "/", Access: sandbox.Read}, sandbox.Rule{Path: "/repo", Access: sandbox.Write}
	tests := []struct {
		name    string
		rules   []sandbox.Rule
		links   []sandbox.Link
		missing []placeholder.Missing
		sights  sights
		// kinds are the objects in sights: "path" is a directory, "path!" an empty
		// one, "path=" a file.
		kinds string
		want  string
	}{
		{name: "read-only", rules: []sandbox.Rule{read}, kinds: "/", want: "base read\ndevices /dev\nprocfs /proc\n"},
		{name: "nothing", want: "base hidden /dev/ /proc/\ndevices /dev\nprocfs /proc\n"},
		{name: "workspace", kinds: "/ /repo /repo/.git /repo/.codex! /repo/.aws /repo/.agents= /single=",
			rules: []sandbox.Rule{read, write, {Path: "/repo/.git", Access: sandbox.Read}, {Path: "/repo/.codex", Access: sandbox.Read},
				{Path: "/repo/.aws", Access: sandbox.Read}, {Path: "/repo/.agents", Access: sandbox.Read}, {Path: "/single", Access: sandbox.Write}, {Path: "/none", Access: sandbox.Write}},
			missing: []placeholder.Missing{{Parent: "/repo", Name: ".aws", Dir: true}},
			want: "base read\ndevices /dev\nprocfs /proc\nbindWrite /repo\nbindWrite /single\n" +
				"seal /repo/.agents\nhollow /repo/.aws\nhollow /repo/.codex\nseal /repo/.git\n"},
		{name: "carve-outs are pinned, from the top", kinds: "/ /repo /repo/a/b/c /repo/x/y=",
			rules: []sandbox.Rule{read, write, {Path: "/repo/a/b/c", Access: sandbox.Read}, {Path: "/repo/x/y", Access: sandbox.Denied}},
			want:  "base read\ndevices /dev\nprocfs /proc\nbindWrite /repo\npin /repo/a\npin /repo/x\npin /repo/a/b\ndeny /repo/x/y\nseal /repo/a/b/c\n"},
		{name: "re-opened", kinds: "/ /repo /repo/a /repo/a/b /repo/a/c/d= /repo/r /repo/r/w",
			rules: []sandbox.Rule{read, write, {Path: "/repo/a", Access: sandbox.Denied}, {Path: "/repo/a/b", Access: sandbox.Write}, {Path: "/repo/a/c/d", Access: sandbox.Read},
				{Path: "/repo/r", Access: sandbox.Read}, {Path: "/repo/r/w", Access: sandbox.Write}},
			want: "base read\ndevices /dev\nprocfs /proc\nbindWrite /repo\ndeny /repo/a /repo/a/b/ /repo/a/c/d\nseal /repo/r\n" +
				"bindWrite /repo/a/b\nbindWrite /repo/r/w\nbindRead /repo/a/c/d\n"},
		{name: "what says nothing new costs nothing", kinds: "/ /repo /repo/n /usr",
			rules: []sandbox.Rule{read, write, {Path: "/repo/n", Access: sandbox.Write}, {Path: "/usr", Access: sandbox.Read}},
			want:  "base read\ndevices /dev\nprocfs /proc\nbindWrite /repo\n"},
		{name: "minimal", kinds: "/usr /repo /repo/v /deny= /deny2",
			rules: []sandbox.Rule{{Path: "/usr", Access: sandbox.Read}, {Path: "/repo", Access: sandbox.Read}, {Path: "/repo/v", Access: sandbox.Denied}, {Path: "/deny", Access: sandbox.Denied},
				{Path: "/deny2", Access: sandbox.Denied}, {Path: "/absent", Access: sandbox.Read}},
			links: []sandbox.Link{{Path: "/bin", Target: "usr/bin"}, {Path: "/deny2/l", Target: "x"}},
			want: "base hidden /bin->usr/bin /deny /deny2/ /dev/ /proc/ /repo/ /usr/\n" +
				"deny /deny\ndeny /deny2 /deny2/l->x\ndevices /dev\nprocfs /proc\nbindRead /repo\nbindRead /usr\ndeny /repo/v\n"},
		{name: "whole root", kinds: "/ /x", rules: []sandbox.Rule{{Path: "/", Access: sandbox.Write}, {Path: "/x", Access: sandbox.Denied}, {Path: "/proc", Access: sandbox.Write}},
			want: "base write\ndevices /dev\nprocfs /proc\nseal /sys?\ndeny /x\n"},
		{name: "pseudo file systems",
			rules: []sandbox.Rule{read, {Path: "/dev/kvm", Access: sandbox.Write}, {Path: "/dev/shm/w", Access: sandbox.Write}, {Path: "/dev/shm/p", Access: sandbox.Denied},
				{Path: "/proc/self", Access: sandbox.Denied}, {Path: "/sys/x", Access: sandbox.Write}},
			kinds: "/ /dev/kvm= /dev/shm/w /dev/shm/p /sys/x",
			want:  "base read\ndevices /dev /dev/shm/w/\nprocfs /proc\ndeny /proc/self?\nbindWrite /dev/shm/w\n"},
		{name: "pseudo file systems denied", rules: []sandbox.Rule{read, {Path: "/dev", Access: sandbox.Denied}, {Path: "/proc", Access: sandbox.Denied}}, kinds: "/ /dev /proc",
			want: "base read\ndeny /dev\ndeny /proc\n"},
		{name: "placeholder above a rule", rules: []sandbox.Rule{read, write, {Path: "/repo/a/b", Access: sandbox.Denied}}, kinds: "/ /repo /repo/a=",
			missing: []placeholder.Missing{{Parent: "/repo", Name: "a"}},
			want:    "base read\ndevices /dev\nprocfs /proc\nbindWrite /repo\nseal /repo/a\n"},
		{name: "protected names of a missing root", rules: []sandbox.Rule{read, write, {Path: "/repo/n", Access: sandbox.Write}, {Path: "/repo/n/.git", Access: sandbox.Read}},
			kinds: "/ /repo", want: "base read\ndevices /dev\nprocfs /proc\nbindWrite /repo\n"},
		{name: "globs and sockets", rules: []sandbox.Rule{read, write, {Path: "/repo/w.env", Access: sandbox.Write}, {Path: "/hid", Access: sandbox.Denied}},
			kinds: "/ /repo /repo/w.env= /hid",
			sights: sights{globbed: []string{"/hid/x.env", "/repo/d/x.env", "/repo/w.env"},
				sockets: []string{"/dev/log", "/hid/s", "/repo/s", "/run/s", "/run/user/7/s"}, runtimeDir: "/run/user/7"},
			want: "base read\ndevices /dev\ndeny /hid\nprocfs /proc\nbindWrite /repo\npin /repo/d\ndeny /repo/w.env\nmute /run/s?\n" +
				"deny /repo/d/x.env\nhollow /run/user/7?\n"},
		{name: "what a glob denies may be gone", rules: []sandbox.Rule{read}, kinds: "/",
			sights: sights{globbed: []string{"/dev/x", "/dev/shm/x", "/f", "/sys/x"}},
			want:   "base read\ndevices /dev\ndeny /f\nprocfs /proc\ndeny /sys/x?\n"},
		{name: "aliases of what is private", rules: []sandbox.Rule{read, write, {Path: "/own", Access: sandbox.Denied}, {Path: "/repo/o/x", Access: sandbox.Read}},
			kinds: "/ /repo /repo/o /own /hid /mnt/o= /repo/o/x", sights: sights{aliases: []string{"/mnt/o", "/own/o", "/repo/o"}},
			want: "base read\ndevices /dev\ndeny /own\nprocfs /proc\nbindWrite /repo\ndeny /mnt/o\ndeny /repo/o\n"},
		{name: "granted below the runtime directory", rules: []sandbox.Rule{read, {Path: "/run/user/7/r", Access: sandbox.Read}, {Path: "/run/user/7/w", Access: sandbox.Write}},
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
			p := &sandbox.Policy{Confined: true, Rules: tt.rules, Links: tt.links}
			plan := rig.Value(planView(&resolve.Resolved{Policy: p, Missing: tt.missing}, tt.sights))
			rig.Same(t, "what came of it", tt.want, plan.show())
		})
	}
}

func TestPlanViewRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		rules   []sandbox.Rule
		missing []placeholder.Missing
		kinds   map[string]objectKind
	}{
		{"nothing holds it", []sandbox.Rule{{Path: "/repo/.git", Access: sandbox.Read}}, nil, nil},
		{"nothing holds it, deeper", []sandbox.Rule{{Path: "/repo/a/b", Access: sandbox.Denied}}, nil, nil},
		{"nothing holds it below a denial", []sandbox.Rule{{Path: "/repo/a", Access: sandbox.Write}, {Path: "/repo/a/b", Access: sandbox.Denied}}, nil,
			map[string]objectKind{"/repo/a": directory}},
		{"the placeholder is gone", []sandbox.Rule{{Path: "/repo/.git", Access: sandbox.Read}}, []placeholder.Missing{{Parent: "/repo", Name: ".git", Dir: true}}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			kinds := map[string]objectKind{"/": directory, "/repo": directory}
			maps.Copy(kinds, tt.kinds)
			p := &sandbox.Policy{Confined: true, Rules: append([]sandbox.Rule{{Path: "/", Access: sandbox.Read}, {Path: "/repo", Access: sandbox.Write}}, tt.rules...)}
			if plan, err := planView(&resolve.Resolved{Policy: p, Missing: tt.missing}, sights{kinds: kinds}); err == nil {
				t.Errorf("planned\n%s", plan.show())
			}
		})
	}
}

// TestPlanViewMeansThePolicy: whatever the rules are, the mounts of the plan give
// each path the access that the policy says.
func TestPlanViewMeansThePolicy(t *testing.T) {
	t.Parallel()
	name := rapid.Custom(func(t *rapid.T) string {
		return "/" + strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b"}), 1, 4).Draw(t, "names"), "/")
	})
	rapid.Check(t, func(t *rapid.T) {
		byPath := map[string]sandbox.Access{}
		if base := rapid.SampledFrom([]sandbox.Access{sandbox.Hidden, sandbox.Read, sandbox.Write}).Draw(t, "base"); base != sandbox.Hidden {
			byPath["/"] = base
		}
		for range rapid.IntRange(0, 6).Draw(t, "rules") {
			byPath[name.Draw(t, "path")] = rapid.SampledFrom([]sandbox.Access{sandbox.Denied, sandbox.Read, sandbox.Write}).Draw(t, "access")
		}
		p := &sandbox.Policy{Confined: true}
		kinds := map[string]objectKind{"/": directory}
		for path, access := range byPath {
			p.Rules = append(p.Rules, sandbox.Rule{Path: path, Access: access})
			kinds[path] = directory
		}
		plan := rig.Value(planView(&resolve.Resolved{Policy: p}, sights{kinds: kinds}))
		at := name.Draw(t, "looked at")
		got, want := plan.access(at), accesses(byPath).at(at)
		if got != want {
			t.Fatalf("%s is %s, want %s; rules %v\n%s", at, got, want, byPath, plan.show())
		}
		for dir := pathname.Parent(at); byPath[at] != sandbox.Hidden && want < sandbox.Write && dir != "/"; dir = pathname.Parent(dir) {
			if accesses(byPath).at(dir) == sandbox.Write && !plan.mounted(dir) {
				t.Fatalf("%s is no mount point above %s; rules %v\n%s", dir, at, byPath, plan.show())
			}
		}
	})
}

// access returns the access that the last mount at or above a path gives it.
func (v *viewPlan) access(name string) sandbox.Access {
	got := v.base
	for _, s := range v.steps {
		if !pathname.Within(name, s.path) {
			continue
		}
		switch s.do {
		case bindWrite:
			got = sandbox.Write
		case bindRead, seal:
			got = sandbox.Read
		case deny:
			got = sandbox.Denied
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
