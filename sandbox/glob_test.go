package sandbox

import (
	"fmt"
	"path"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/execagent/execagent/internal/braces"
	"github.com/execagent/execagent/test/rig"
)

func TestGlob(t *testing.T) {
	t.Parallel()
	for _, row := range rig.Rows(t, "testdata/glob.txt", "globs", 7) {
		pattern, cwd, depth := row[0], row[1], rig.Value(strconv.Atoi(row[2]))
		t.Run(pattern, func(t *testing.T) {
			t.Parallel()
			globs := rig.Value(newGlobs(pattern, cwd, depth))
			rig.Is(t, [2]string{globs[0].Base, globs[0].Pattern}, [2]string{row[3], row[4]}, "base and pattern")
			p := Policy{Confined: true, Globs: globs}
			for i, denied := range []bool{true, false} {
				for path := range strings.FieldsSeq(row[5+i]) {
					rig.Is(t, p.DeniesFile(path), denied, "%s is denied", path)
				}
			}
		})
	}
}

func TestGlobRefused(t *testing.T) {
	t.Parallel()
	for _, row := range append(rig.Rows(t, "testdata/glob.txt", "refused", 2), []string{strings.Repeat("a", MaxPath+1), "longer"}) {
		pattern, want := row[0], row[1]
		err := rig.Err(newGlobs(pattern, "/cwd", 0))
		rig.Is(t, strings.Contains(fmt.Sprint(err), want), true, "%q: %q is in %v", pattern, want, err)
	}
}

func TestGlobChoices(t *testing.T) {
	many := testing.AllocsPerRun(1, func() {
		braces.Expand(strings.Repeat("{a,b}", 9)+strings.Repeat("{", 200)+strings.Repeat("}", 200), 999)
	})
	for pattern, want := range map[string]int{
		"{a,b}":                2,
		"{a,b}{c,d,e}":         6,
		"{a,{b,c}d,{e,{f,g}}}": 6,
		"{}":                   1, "{,}": 2,
		`\{a,b\}`:    1,
		"[{,}]{a,b}": 2,
		`[\],]{a,b}`: 2,
		"a":          1, "a,b": 1,
		strings.Repeat("{a,b}", 100): 1000, "{{a}[{}]{b,{c}}}{}": 2,
		strings.Repeat("{a,", 1000) + strings.Repeat("}", 1000): 1000,
	} {
		choices, ok := braces.Expand(pattern, 999)
		rig.Is(t, (len(choices) == want && ok || !ok && want == 1000) && many < 10_000, true, "%.40q, and %v allocations for braces without commas", pattern, many)
	}
}

// TestGlobTime: even the accepted patterns that take the most work are matched in
// milliseconds.
func TestGlobTime(t *testing.T) {
	t.Parallel()
	name := "/repo/" + strings.Repeat(strings.Repeat("a", 200)+"/", 19) + "b"
	for _, pattern := range []string{
		"/repo/" + strings.Repeat("**/*a", 700),
		"/repo/" + strings.Repeat("**/a*", 700) + "/c",
		"/repo/" + strings.Repeat("a*", 2000) + "c",
		"/repo/**/" + strings.Repeat("{a,*}", 8) + "c",
		"/repo/" + strings.Repeat("{**/,*}", 8) + "c",
	} {
		p := rig.Value(Profile{Entries: []Entry{entry(PlaceGlob, Denied, pattern)}}.Compile())
		start := time.Now()
		p.DeniesFile(name)
		if took := time.Since(start); took > time.Minute { // milliseconds; without the bounds, years
			t.Errorf("%.40q took %v", pattern, took)
		}
	}
}

// naiveGlob matches by plain recursion, name by name, and each name letter by
// letter.
func naiveGlob(pattern, name []string) bool {
	if len(pattern) == 0 {
		return len(name) == 0
	}
	if pattern[0] == "**" {
		return naiveGlob(pattern[1:], name) || len(name) > 0 && naiveGlob(pattern, name[1:])
	}
	return len(name) > 0 && naiveName(pattern[0], name[0]) && naiveGlob(pattern[1:], name[1:])
}

func naiveName(pattern, name string) bool {
	if pattern == "" {
		return name == ""
	}
	switch pattern[0] {
	case '*':
		return naiveName(pattern[1:], name) || name != "" && naiveName(pattern, name[1:])
	case '?':
		return name != "" && naiveName(pattern[1:], name[1:])
	}
	return name != "" && name[0] == pattern[0] && naiveName(pattern[1:], name[1:])
}

// naiveExpand writes out the braces of a pattern that has no nested ones.
func naiveExpand(pattern string) []string {
	before, rest, ok := strings.Cut(pattern, "{")
	if !ok {
		return []string{pattern}
	}
	choices, after, _ := strings.Cut(rest, "}")
	var all []string
	for choice := range strings.SplitSeq(choices, ",") {
		for _, a := range naiveExpand(after) {
			all = append(all, before+choice+a)
		}
	}
	return all
}

// naive reports whether the pattern matches the name; both are relative to the same
// directory.
func naive(pattern, name string) bool {
	for _, choice := range naiveExpand(pattern) {
		names := components(path.Clean(choice))
		for i, n := range names {
			if strings.Trim(n, "*") == "" && len(n) > 1 {
				names[i] = "**"
			}
		}
		if names[len(names)-1] == "**" {
			names = append(names, "*")
		}
		if naiveGlob(names, components(name)) {
			return true
		}
	}
	return false
}

func TestGlobModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		parts := []string{"a", "b", ".", "*", "?", "/", "/**/", "{a,b}", "{*,b/a}", "{a/**/b,?}", "{,a}"}
		pattern := strings.Join(rapid.SliceOfN(rapid.SampledFrom(parts), 1, 7).Draw(t, "pattern"), "")
		name := strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "..", "a/", "b/"}), 1, 9).Draw(t, "name"), "")
		name = strings.TrimSuffix(name, "/")
		// The wildcard in the first name keeps newGlobs from moving names of the
		// pattern into the base, which would not be /r any more.
		globs, err := newGlobs("/r/x*/"+pattern, "", 0)
		if err != nil {
			t.Skip(err)
		}
		p := Policy{Confined: true, Globs: globs}
		rig.Is(t, p.DeniesFile("/r/x/"+name), naive("x*/"+pattern, "x/"+name), "%q matches %q", pattern, name)
	})
}
