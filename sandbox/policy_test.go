package sandbox

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/execagent/execagent/test/rig"
)

// rulesOf makes rules of lines such as "write /repo".
func rulesOf(lines ...string) []Rule {
	var rules []Rule
	for _, line := range lines {
		access, path, _ := strings.Cut(line, " ")
		i := slices.Index([]string{"hidden", "denied", "read", "write"}, access)
		rules = append(rules, Rule{Path: path, Access: Access(i)})
	}
	slices.SortFunc(rules, func(a, b Rule) int { return strings.Compare(a.Path, b.Path) })
	return rules
}

func TestPolicyAccess(t *testing.T) {
	t.Parallel()
	p := &Policy{
		Confined: true,
		Rules: rulesOf("read /usr", "write /repo", "denied /repo/a", "write /repo/a/b", "read /repo-x/y",
			"denied /gone/x", "read /repo/.git"),
		Globs: []Glob{{Base: "/etc/keys/deep", Pattern: "*"}},
		Links: []Link{{Path: "/bin", Target: "usr/bin"}, {Path: "/opt/x/link", Target: "/usr"}},
	}
	for _, row := range rig.Rows(t, "testdata/access.txt", "paths", 4) {
		path := row[0]
		rig.Is(t, p.Access(path).String(), row[1], "Access(%q)", path)
		if !strings.HasPrefix(path, "/") || len(path) > 1 && strings.HasSuffix(path, "/") {
			continue // the caller's mistake: Access still grants nothing, the others promise nothing
		}
		rig.Is(t, fmt.Sprint(p.Leads(path)), row[2], "Leads(%q)", path)
		rig.Is(t, fmt.Sprint(p.Bound(path)), row[3], "Bound(%q)", path)
	}
	for path, grants := range map[string]bool{"/repo": true, "/repo/x": false, "/repo/a": true, "/repo/a/c": false, "/usr": true, "/usr/bin": false, "/opt": true} {
		rig.Is(t, p.Grants(path), grants, "Grants(%q)", path)
	}
	rig.Same(t, "what came of it", []string{"/repo", "/repo/a/b"}, p.WritableRoots())
}

func TestPolicyUnconfined(t *testing.T) {
	t.Parallel()
	var p Policy
	if p.Access("/x") != Write || !p.Leads("/x") || p.Bound("/x") || p.DeniesFile("/x") || p.WritableRoots() != nil {
		t.Error("the zero policy restricts files")
	}
	rig.Is(t, p.Network, NetworkRestricted, "the zero policy does not restrict the network")
}

// drawPath draws a path of names that are prefixes of each other.
func drawPath(t *rapid.T, label string) string {
	names := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "ab", "a-", "a.", ".git", "b", "0"}), 0, 4).Draw(t, label)
	return "/" + strings.Join(names, "/")
}

func drawPolicy(t *rapid.T) *Policy {
	rules := Draft{}
	for range rapid.IntRange(0, 12).Draw(t, "rules") {
		r := Rule{Path: drawPath(t, "path"), Access: rapid.SampledFrom([]Access{Denied, Read, Write}).Draw(t, "access")}
		rules.Add(r)
	}
	p := &Policy{Confined: true}
	p.SetRules(rules, nil)
	return p
}

// components is a path as a list of names.
func components(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}

func prefixOf(prefix, path []string) bool {
	return len(prefix) <= len(path) && slices.Equal(prefix, path[:len(prefix)])
}

// TestPolicyModel compares the methods with a search of all rules that does
// literally what sandbox.md 5 says.
func TestPolicyModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p, path := drawPolicy(t), drawPath(t, "looked up")
		names := components(path)
		access, longest, leads, bound := Hidden, -1, false, false
		for _, r := range p.Rules {
			rule := components(r.Path)
			if prefixOf(rule, names) && len(rule) > longest {
				access, longest = r.Access, len(rule)
			}
			if prefixOf(names, rule) {
				bound = true
				leads = leads || len(rule) > len(names) && r.Access >= Read
			}
		}
		rig.Is(t, p.Access(path), access, "Access(%s) in\n%v", path, p)
		rig.Is(t, p.Leads(path), leads, "Leads(%s) in\n%v", path, p)
		rig.Is(t, p.Bound(path), bound, "Bound(%s) in\n%v", path, p)
	})
}

func TestPolicyString(t *testing.T) {
	t.Parallel()
	p := &Policy{
		Confined: true,
		Rules: []Rule{
			{Path: "/", Access: Read},
			{Path: "/repo", Access: Write},
			{Path: "/repo/.git", Access: Read, Origin: Protected},
			{Path: "/repo/.x", Access: Read, SkipMissing: true},
		},
		Globs: []Glob{{Base: "/repo", Pattern: "**/*.env", MaxDepth: 3}},
		Links: []Link{{"/bin", "usr/bin"}},
	}
	want := `network  restricted
read     /
write    /repo
read     /repo/.git (protected)
read     /repo/.x (hidden if missing)
denied   files **/*.env in /repo (depth 3)
link     /bin -> usr/bin
`
	rig.Same(t, "what came of it", want, p.String())
}

func TestPolicyText(t *testing.T) {
	t.Parallel()
	p := Policy{
		Confined: true, FullRead: true, Network: NetworkEnabled,
		Rules: []Rule{
			{Path: "/", Access: Read},
			{Path: "/repo\xff\n", Access: Denied, Origin: GitDir, SkipMissing: true, Otherwise: Read, Replaceable: true},
		},
		Globs:   []Glob{{Base: "/r\xfe", Pattern: "*", MaxDepth: 7}},
		Links:   []Link{{"/l", "\xff"}},
		Private: []string{"/p"}, Sockets: []string{"/a", "/s\xff"}, Devices: []string{"/dev/d"},
	}
	type envelope struct{ Policy Policy }
	data := rig.Value(json.Marshal(envelope{p}))
	var got envelope
	rig.Must(t, json.Unmarshal(data, &got))
	rig.Same(t, "what came of it", p, got.Policy)
	rig.Is(t, got.Policy.Key(), p.Key(), "the key has changed on the way")
}

// TestPolicyKey changes one thing at a time.
func TestPolicyKey(t *testing.T) {
	t.Parallel()
	policies := []Policy{
		{},
		{Network: NetworkEnabled},
		{Confined: true},
		{FullRead: true},
		{Rules: []Rule{{Path: "/a"}}},
		{Rules: []Rule{{Path: "/b"}}},
		{Rules: []Rule{{Path: "/a", Access: Read}}},
		{Rules: []Rule{{Path: "/a", Origin: Private}}},
		{Rules: []Rule{{Path: "/a", SkipMissing: true}}},
		{Rules: []Rule{{Path: "/a", Replaceable: true}}},
		{Rules: []Rule{{Path: "/a", SkipMissing: true, Otherwise: Read}}},
		{Rules: []Rule{{Path: "/a"}, {Path: "/b"}}},
		{Globs: []Glob{{Base: "/a", Pattern: "b"}}},
		{Globs: []Glob{{Base: "/ab", Pattern: ""}}},
		{Globs: []Glob{{Base: "/a", Pattern: "b", MaxDepth: 1}}},
		{Links: []Link{{"/a", "b"}}},
		{Private: []string{"/a", "b"}},
		{Private: []string{"/ab"}},
		{Sockets: []string{"/ab"}},
		{Devices: []string{"/ab"}},
	}
	keys := map[[32]byte]int{}
	for i, p := range policies {
		_, taken := keys[p.Key()]
		rig.Is(t, taken, false, "policy %d has the key of another one", i)
		keys[p.Key()] = i
	}
}

func TestPolicyTextRefused(t *testing.T) {
	t.Parallel()
	good := rig.Value(Policy{Confined: true, Rules: rulesOf("read /a", "write /b")}.MarshalText())
	unsorted := rig.Value(Policy{Confined: true, Rules: []Rule{{Path: "/b"}, {Path: "/a"}}}.MarshalText())
	named := rig.Value(Policy{Confined: true, Sockets: []string{"/b", "/a"}}.MarshalText())
	sockets := rig.Value(Policy{Confined: true, AllUnixSockets: true}.MarshalText())
	for name, text := range map[string]string{
		"all UNIX sockets of no network": string(sockets), "empty": "", "not base64": "%%", "truncated": string(good[:len(good)-8]), "unsorted": string(unsorted), "sockets unsorted": string(named),
		"trailing": string(good) + "AAAA", "line break": string(good[:8]) + "\n" + string(good[8:]), "line break at the end": string(good) + "\r\n",
	} {
		rig.Is(t, new(Policy).UnmarshalText([]byte(text)) != nil, true, "%s is refused", name)
	}
}

// workspace is a policy such as most requests have.
func workspace(b *testing.B) *Policy {
	b.Helper()
	p, err := Profile{
		Entries: []Entry{
			{Place: PlaceRoot, Access: Read},
			{Place: PlaceProjectRoots, Access: Write},
			{Place: PlaceSlashTmp, Access: Write},
			{Place: PlaceProjectRoots, Path: ".git", Access: Read, SkipMissing: true},
			{Place: PlaceGlob, Path: "**/*.env", Access: Denied},
		},
		Cwd:            "/home/user/src/project",
		WorkspaceRoots: []string{"/home/user/src/project"},
		Private:        []string{"/run/agent"},
	}.Compile()
	rig.Must(b, err)
	return p
}

func BenchmarkPolicy(b *testing.B) {
	p := workspace(b)
	const dir = "/home/user/src/project/internal"
	for name, ask := range map[string]func(){
		"Access": func() { p.Access(dir + "/server/handler.go") }, "DeniesFile": func() { p.DeniesFile(dir + "/server/handler.go") },
		"Leads": func() { p.Leads(dir) }, "Bound": func() { p.Bound(dir) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				ask()
			}
		})
	}
}
