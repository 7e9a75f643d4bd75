package rule

import (
	"fmt"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// set makes a Set of lines such as "forbidden git push|fetch"; ~ in front of a decision makes the
// rule caseless.
func set(lines ...string) *Set {
	s := &Set{}
	for _, line := range lines {
		words := strings.Fields(line)
		r := &Rule{}
		name, caseless := strings.CutPrefix(words[0], "~")
		r.Decision = rig.Value(ParseDecision(name))
		for _, word := range words[1:] {
			r.Pattern = append(r.Pattern, strings.Split(word, "|"))
		}
		if caseless {
			r.Caseless()
		}
		s.Add(r)
	}
	return s
}

// render writes matches as "decision prefix@program", separated by commas.
func render(matches []Match) string {
	var list []string
	for _, m := range matches {
		text := m.Decision.String() + " " + strings.Join(m.Prefix, " ")
		if m.Program != "" {
			text += "@" + m.Program
		}
		list = append(list, text)
	}
	return strings.Join(list, ", ")
}

// TestMatchProgram: rules match what a command spells, or else the name of its program.
func TestMatchProgram(t *testing.T) {
	t.Parallel()
	rules := []string{"allow git", "~prompt GIT push", "forbidden git push|pull -f", "allow /opt/git push", "~prompt é"}
	for _, tt := range []struct {
		hosts         string // "name path path, name"
		command, want string
	}{
		{"", "git status", "allow git"},
		{"", "git push -f x", "allow git, forbidden git push -f, prompt git push"},
		{"", "Git PUSH -f", "prompt Git PUSH"},
		{"", "/usr/bin/git push", "allow git@/usr/bin/git, prompt git push@/usr/bin/git"},
		{"", "/usr//bin/../bin/git pull -f", "allow git@/usr/bin/git, forbidden git pull -f@/usr/bin/git"},
		{"", "./git x", "allow git@/dir/git"},
		{"", "~/git x", "allow git@/home/git"},
		{"", "/opt/git push", "allow /opt/git push"},
		{"", "/opt/git pull", "allow git@/opt/git"},
		{"", "/", ""},
		{"", "/..", ""},
		{"", "É", "prompt É"},
		{"", "/x/e\u0301", "prompt e\u0301@/x/e\u0301"},
		{"git /usr/bin/git", "/opt/x/git pull -f", ""},
		{"git /usr/bin/git", "/usr/bin/git status", "allow git@/usr/bin/git"},
		{"git /usr/bin/git", "/x/git push", ""},
		{"Git /x/Git", "/x/git push", "allow git@/x/git"}, // the caseless rule heeds it, the other does not
		{"Git /x/Git", "/x/Git push", "prompt Git push@/x/Git"},
		{"git", "git status", "allow git"},
		{"git", "/usr/bin/git status", ""},
	} {
		s := set(rules...)
		if tt.hosts != "" {
			words := strings.Fields(tt.hosts)
			s.DefineHost(words[0], words[1:])
		}
		got := render(s.MatchProgram(strings.Fields(tt.command), func(p string) string { return Absolute(p, "/dir", "/home") }))
		rig.Is(t, got, tt.want, "%q with %q", tt.command, tt.hosts)
	}
	rig.Is(t, render(set(rules...).Restrictive([]string{"/x/git", "push", "-f"}, "/x/git")), "forbidden git push -f@/x/git, prompt git push@/x/git", "restrictive")
}

// TestAppend: what is appended counts behind what was there, and replaces definitions.
func TestAppend(t *testing.T) {
	t.Parallel()
	s, other := set("allow a"), set("prompt a b")
	s.DefineHost("a", []string{"/1/a"})
	other.DefineHost("a", []string{"/2/a"})
	other.AddNetwork(Network{Host: "h"})
	s.Append(other)
	abs := func(p string) string { return p }
	rig.Is(t, render(s.MatchProgram([]string{"/2/a", "b"}, abs)), "allow a@/2/a, prompt a b@/2/a", "the result")
	rig.Is(t, render(s.MatchProgram([]string{"/1/a", "b"}, abs)), "", "the result")
	rig.Is(t, fmt.Sprint(s.Len(), s.LongestPattern(), len(s.Networks())), "2 2 1", "rules, words, networks")
}

// TestHosts: hosts of rules are compared without what does not matter.
func TestHosts(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		" Example.COM:443 ": "example.com", "a..": "a", "[::1]:80": "::1", "[::1]": "::1", "::1": "::1", "a:b": "a:b", "a:": "a:", ":80": ":80",
	} {
		rig.Is(t, rig.Value(ParseHost(text)), want, "%q", text)
	}
	for _, text := range []string{"", " ", ".", "http://a", "a/b", "a?b", "a#b", "*.a", "a b", "[::1", "[::1]:x", "[]", "[::1]x"} {
		rig.Is(t, rig.Err(ParseHost(text)) != nil, true, "%q is refused", text)
	}
}

// TestQuote: a shell reads the words again.
func TestQuote(t *testing.T) {
	t.Parallel()
	rig.Is(t, Quote([]string{"a-b/c", "", "d e", "it's", "é"}), `a-b/c '' 'd e' 'it'\''s' 'é'`, "the result")
}
