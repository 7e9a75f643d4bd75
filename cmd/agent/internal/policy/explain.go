package policy

import (
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/execagent/execagent/sandbox"
)

// Explain prints what the command may do with files, each line with its origin.
func (p *Plan) Explain(w io.Writer) error {
	policy, err := p.Profile.Compile()
	if err != nil {
		return err
	}
	var lines []Line
	for _, r := range policy.Rules {
		origin, ok := p.origins[r.Path]
		switch dir := path.Dir(r.Path); {
		case r.Origin == sandbox.Protected && !ok:
			// The protected names of a root follow each other, and are one line.
			all := path.Join(dir, "{"+strings.Join(sandbox.ProtectedNames(), ",")+"}")
			if n := len(lines); n == 0 || lines[n-1].What != all {
				lines = append(lines, Line{r.Access.String(), all, "default: names that tools trust"})
			}
			continue
		case r.Origin == sandbox.Minimal && !ok:
			origin = "--view: what programs need"
		}
		lines = append(lines, Line{r.Access.String(), r.Path, origin})
	}
	for _, name := range policy.Sockets {
		lines = append(lines, Line{"socket", name, p.origins[name]})
	}
	for _, name := range policy.Devices {
		lines = append(lines, Line{"device", name, p.origins[name]})
	}
	for _, e := range p.Profile.Entries {
		if e.Place == sandbox.PlaceGlob {
			lines = append(lines, Line{sandbox.Denied.String(), e.Path, p.origins[e.Path]})
		}
	}
	if !policy.Confined {
		lines = append(lines, Line{"write", "/", "the policy restricts no files"})
	}
	return Print(w, "files", lines)
}

// ExplainEnviron prints which variables the command gets. hidden are those that Environ has hidden, and given
// those that -e sets.
func (f *Flags) ExplainEnviron(w io.Writer, hidden []string, given map[string]string) error {
	lines := []Line{{"pass", "all others", "default"}}
	if f.CleanEnv {
		lines = []Line{{"pass", "HOME, PATH, USER, LANG, TERM, TMPDIR and the like", "--clean-env"}}
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		lines = append(lines, Line{"set", name, "-e"})
	}
	for _, name := range f.KeepEnv {
		lines = append(lines, Line{"pass", name, "--keep-env"})
	}
	for _, p := range f.profiles {
		for _, name := range p.Env {
			lines = append(lines, Line{"pass", name, p.origin()})
		}
	}
	for _, name := range hidden {
		lines = append(lines, Line{"hide", name, "default: looks like a secret"})
	}
	return Print(w, "variables", lines)
}

// Line is a line of an explanation: a verb, the path, host or variable that the verb is about, and the flag,
// profile or default that says so.
type Line struct{ Verb, What, Origin string }

// Print prints lines below a heading.
func Print(w io.Writer, heading string, lines []Line) error {
	width := 0
	for _, r := range lines {
		width = max(width, min(len(r.What), 60))
	}
	var b strings.Builder
	b.WriteString(heading + "\n")
	for _, r := range lines {
		fmt.Fprintf(&b, "  %-6s  %-*s  %s\n", r.Verb, width, r.What, r.Origin)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
