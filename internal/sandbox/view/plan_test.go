package view

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/execagent/execagent/internal/sandbox/pathname"
	"github.com/execagent/execagent/internal/sandbox/placeholder"
	"github.com/execagent/execagent/internal/sandbox/resolve"
	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
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

// addTo adds to a policy what a line of testdata says, or returns what is missing.
func addTo(p *sandbox.Policy, words []string) []placeholder.Missing {
	what, path := words[0], words[1]
	switch what {
	case "missing":
		name, dir := strings.CutSuffix(path, "/")
		return []placeholder.Missing{{Parent: filepath.Dir(name), Name: filepath.Base(name), Dir: dir}}
	case "link":
		p.Links = append(p.Links, sandbox.Link{Path: path, Target: words[2]})
	case "glob":
		glob := sandbox.Glob{Base: path, Pattern: words[2]}
		if len(words) > 3 {
			glob.MaxDepth = rig.Value(strconv.Atoi(words[3]))
		}
		p.Globs = append(p.Globs, glob)
	case "private":
		p.Private = append(p.Private, path)
		p.Rules = append(p.Rules, sandbox.Rule{Path: path, Access: sandbox.Denied, Origin: sandbox.Private})
	case "replaceable":
		p.Rules = append(p.Rules, sandbox.Rule{Path: path, Access: sandbox.Denied, Replaceable: true})
	default:
		access := slices.Index([]string{"hidden", "denied", "read", "write"}, what)
		p.Rules = append(p.Rules, sandbox.Rule{Path: path, Access: sandbox.Access(access)})
	}
	return nil
}

// planOf plans the view that the lines of a case describe.
func planOf(lines []string) (*viewPlan, error) {
	r := &resolve.Resolved{Policy: &sandbox.Policy{Confined: true}}
	seen := sights{kinds: map[string]objectKind{}}
	for _, line := range lines {
		words := strings.Fields(line)
		switch what, rest := words[0], words[1:]; what {
		case "there":
			for _, name := range rest {
				kind := map[byte]objectKind{'=': file, '!': emptyDirectory}[name[len(name)-1]]
				if kind == 0 {
					kind = directory
				}
				seen.kinds[strings.TrimRight(name, "=!")] = kind
			}
		case "globbed":
			seen.globbed = rest
		case "aliases":
			seen.aliases = rest
		case "sockets":
			seen.sockets = rest
		case "named":
			seen.named = rest
		case "runtime":
			seen.runtimeDir = rest[0]
		default:
			r.Missing = append(r.Missing, addTo(r.Policy, words)...)
		}
	}
	return planView(r, seen)
}

// TestPlanView has its cases in testdata.
func TestPlanView(t *testing.T) {
	t.Parallel()
	for _, c := range sandboxtest.Cases(t, "testdata/plan.txt", 2) {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			got := "refused\n"
			if plan, err := planOf(c.Parts[0]); err == nil {
				got = plan.show()
			}
			rig.Same(t, "what came of it", strings.Join(c.Parts[1], "\n")+"\n", got)
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
