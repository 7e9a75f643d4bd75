package sandbox

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/sandbox/pathname"
	"github.com/execagent/execagent/test/rig"
)

// profileOf makes a profile of fuzzed bytes. Each line is a digit for the place,
// one for the access and a path; a letter instead of the place sets a field of
// the profile.
func profileOf(data []byte) (p Profile) {
	for line := range bytes.Lines(data) {
		line = bytes.TrimSuffix(line, []byte("\n"))
		if len(line) < 2 {
			continue
		}
		text := string(line[2:])
		switch place, access := line[0]-'0', line[1]-'0'; place {
		case 'w' - '0':
			p.WorkspaceRoots = append(p.WorkspaceRoots, text)
		case 'p' - '0':
			p.Private = append(p.Private, text)
		case 's' - '0':
			p.Sockets, p.Devices = append(p.Sockets, text), append(p.Devices, text)
		case 'c' - '0':
			p.Cwd = text
		case 't' - '0':
			p.TmpDir = text
		default:
			p.Entries = append(p.Entries, Entry{Place: Place(place), Path: text, Access: Access(access & 7), SkipMissing: access&8 != 0})
		}
	}
	return p
}

// FuzzCompile: whatever profile compiles, its policy keeps the promises of its
// doc comments.
func FuzzCompile(f *testing.F) {
	f.Add([]byte("22\n53\n52.git\n5:.aws\nw /repo\nc /repo\ns /s\ns /r//s\n"), "/repo/.git/config")
	f.Add([]byte("32\n03/repo\n01/repo/a\n03/repo/a/b\n11/repo/**/*.env\np /run\n"), "/repo/a/b/c.env")
	f.Add([]byte("23\n01/x\n11/{a,b}/[a-z]*\n"), "/a/x")
	f.Fuzz(func(t *testing.T, data []byte, name string) {
		profile := profileOf(data)
		p, err := profile.Compile()
		if err != nil {
			return
		}
		name = path.Clean("/" + name)
		access := p.Access(name)
		p.DeniesFile(name)
		if !p.Confined {
			return
		}
		rig.Is(t, slices.IsSorted(p.Sockets) && slices.IsSorted(p.Devices), true, "sockets and devices are sorted:\n%v", p)
		for i, r := range p.Rules {
			if !path.IsAbs(r.Path) || path.Clean(r.Path) != r.Path || i > 0 && p.Rules[i-1].Path >= r.Path {
				t.Fatalf("rule %d:\n%v", i, p)
			}
			if r.Access == Hidden || r.SkipMissing && r.Otherwise == r.Access || !r.SkipMissing && r.Otherwise != Hidden {
				t.Fatalf("rule %+v", r)
			}
			if !p.Bound(r.Path) || r.Path != "/" && !p.Bound(pathname.Parent(r.Path)) {
				t.Fatalf("%s is not bound", r.Path)
			}
			if r.Access >= Read && r.Path != "/" && !p.Leads(pathname.Parent(r.Path)) {
				t.Fatalf("nothing leads to %s", r.Path)
			}
		}
		for _, own := range profile.Private {
			own = path.Clean(own)
			if a := p.Access(own); a >= Read || p.Leads(own) {
				t.Fatalf("private %s is %v in\n%v", own, a, p)
			}
			if (name == own || pathname.Below(name, own)) && access >= Read {
				t.Fatalf("%s is %v in\n%v", name, access, p)
			}
		}
		for _, root := range p.WritableRoots() {
			for _, n := range protectedNames {
				if i, ok := p.find(path.Join(root, n)); !ok && !strings.HasPrefix(path.Base(root), ".") && len(profile.Private) == 0 {
					t.Fatalf("%s/%s is not protected (%d) in\n%v", root, n, i, p)
				}
			}
		}
		for _, g := range p.Globs {
			if !path.IsAbs(g.Base) || path.Clean(g.Base) != g.Base || g.Base == "/" || !p.Bound(g.Base) {
				t.Fatalf("glob %+v", g)
			}
		}
		text, err := p.MarshalText()
		rig.Must(t, err)
		var got Policy
		rig.Must(t, got.UnmarshalText(text))
		rig.Is(t, got.Key(), p.Key(), "got\n%vwant\n%v", &got, p)
	})
}

// FuzzAccess compares Access with a plain search of all rules.
func FuzzAccess(f *testing.F) {
	f.Add("2/\n3/repo\n1/repo/a\n3/repo/a/b\n2/repo/.git", "/repo/a/b/c")
	f.Add("2/a\n2/a.b\n2/a/b\n1/a/b/c\n2/a0", "/a")
	f.Fuzz(func(t *testing.T, text, name string) {
		rules := Draft{}
		for line := range strings.SplitSeq(text, "\n") {
			if line != "" {
				rules.Add(Rule{Path: path.Clean("/" + line[1:]), Access: Denied + Access(line[0]%3)})
			}
		}
		p := &Policy{Confined: true}
		p.SetRules(rules, nil)
		name = path.Clean("/" + name)
		access, longest, leads, bound := Hidden, -1, false, false
		for _, r := range p.Rules {
			rule := components(r.Path)
			if prefixOf(rule, components(name)) && len(rule) > longest {
				access, longest = r.Access, len(rule)
			}
			if prefixOf(components(name), rule) {
				bound = true
				leads = leads || r.Path != name && r.Access >= Read
			}
		}
		rig.Is(t, fmt.Sprint(p.Access(name), p.Leads(name), p.Bound(name)), fmt.Sprint(access, leads, bound), "%s in\n%v", name, p)
	})
}

// FuzzGlob compares the globs with the naive matcher of glob_test.go.
func FuzzGlob(f *testing.F) {
	f.Add("**/*a", "b/aa")
	f.Add("{a,*b}/**/?", "ab/c/d")
	f.Add("a**b/**", "ab/c")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		name = path.Clean("/r/x/" + name)
		if strings.ContainsAny(pattern, `[]\`) || len(pattern) > 12 || len(name) > 24 || !pathname.Below(name, "/r/x") {
			t.Skip()
		}
		if i := strings.IndexByte(pattern, '{'); i >= 0 && strings.ContainsAny(strings.SplitN(pattern[i+1:], "}", 2)[0], "{") {
			t.Skip("nested")
		}
		for _, s := range []string{pattern, name} {
			if strings.ContainsFunc(s, func(r rune) bool { return r >= 0x80 }) {
				t.Skip("the model takes bytes")
			}
		}
		globs, err := newGlobs("/r/x*/"+pattern, "", 0)
		if err != nil || strings.Count(pattern, "{") > 1 {
			t.Skip()
		}
		p := Policy{Confined: true, Globs: globs}
		rig.Is(t, p.DeniesFile(name), naive("x*/"+pattern, strings.TrimPrefix(name, "/r/")), "%q matches %q", pattern, name)
	})
}

// FuzzPolicyText: a text that UnmarshalText accepts gives a policy that survives
// being written and read again.
func FuzzPolicyText(f *testing.F) {
	text, err := Policy{Confined: true, Rules: rulesOf("read /a", "write /b"), Globs: []Glob{{Base: "/a", Pattern: "*"}}}.MarshalText()
	rig.Must(f, err)
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		var p, again Policy
		if p.UnmarshalText(text) != nil {
			return
		}
		out, err := p.MarshalText()
		rig.Must(t, err)
		if err := again.UnmarshalText(out); err != nil || again.Key() != p.Key() {
			t.Fatalf("%v: %v and %v", err, &p, &again)
		}
	})
}
