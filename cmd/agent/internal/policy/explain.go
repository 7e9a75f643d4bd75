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

// Explain prints the effective policy about files, each line with its origin.
func (p *Plan) Explain(w io.Writer) error {
	policy, err := p.Profile.Compile()
	if err != nil {
		return err
	}
	var rows []Row
	for _, r := range policy.Rules {
		origin, ok := p.origins[r.Path]
		switch dir := path.Dir(r.Path); {
		case r.Origin == sandbox.Protected && !ok:
			// The protected names of a root follow each other, and are one line.
			all := path.Join(dir, "{"+strings.Join(sandbox.ProtectedNames(), ",")+"}")
			if n := len(rows); n == 0 || rows[n-1].What != all {
				rows = append(rows, Row{r.Access.String(), all, "default: names that tools trust"})
			}
			continue
		case r.Origin == sandbox.Minimal && !ok:
			origin = "--view: what programs need"
		}
		rows = append(rows, Row{r.Access.String(), r.Path, origin})
	}
	for _, e := range p.Profile.Entries {
		if e.Place == sandbox.PlaceGlob {
			rows = append(rows, Row{sandbox.Denied.String(), e.Path, p.origins[e.Path]})
		}
	}
	if !policy.Confined {
		rows = append(rows, Row{"write", "/", "the policy restricts no files"})
	}
	return Print(w, "files", rows)
}

// ExplainEnviron prints which variables the command gets. hidden are the secrets.
func (f *Flags) ExplainEnviron(w io.Writer, hidden []string, given map[string]string) error {
	rows := []Row{{"pass", "all others", "default"}}
	if f.CleanEnv {
		rows = []Row{{"pass", "HOME, PATH, USER, LANG, TERM, TMPDIR and the like", "--clean-env"}}
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		rows = append(rows, Row{"set", name, "-e"})
	}
	for _, name := range f.KeepEnv {
		rows = append(rows, Row{"pass", name, "--keep-env"})
	}
	for _, p := range f.profiles {
		for _, name := range p.Env {
			rows = append(rows, Row{"pass", name, p.origin()})
		}
	}
	for _, name := range hidden {
		rows = append(rows, Row{"hide", name, "default: looks like a secret"})
	}
	return Print(w, "variables", rows)
}

// Row is a line of an explanation: a verb, what it is about, and the flag, profile or default that says so.
type Row struct{ Verb, What, Origin string }

// Print prints rows below a heading.
func Print(w io.Writer, heading string, rows []Row) error {
	width := 0
	for _, r := range rows {
		width = max(width, min(len(r.What), 60))
	}
	var b strings.Builder
	b.WriteString(heading + "\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "  %-6s  %-*s  %s\n", r.Verb, width, r.What, r.Origin)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
