package hostile

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// A difference is one between the backends that has a reason, a section of testdata/known.txt.
type difference struct{ calls, args, says, mode, namespaces, supervised, why string }

// knownDifferences returns those that have a reason.
func knownDifferences(t *testing.T) (known []difference) {
	t.Helper()
	for _, s := range rig.Sections(t, "testdata/known.txt") {
		d := difference{why: s.Name}
		parts := map[string]*string{
			"calls": &d.calls, "args": &d.args, "says": &d.says, "mode": &d.mode, "namespaces": &d.namespaces, "supervised": &d.supervised,
		}
		for line := range strings.Lines(s.Text) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			if part := parts[name]; part != nil {
				*part = strings.TrimSpace(value)
			} else if name != "" && name != "#" {
				t.Fatalf("what is %s", line)
			}
		}
		known = append(known, d)
	}
	return known
}

// explain returns the known difference that says why two results differ; nil if none does.
func (f *fuzz) explain(a, b made) *difference {
	in := func(list, end string) bool {
		ends := strings.Fields(list)
		return slices.Contains(ends, end) || slices.Contains(ends, "failure") && end != "ok"
	}
	for i, d := range f.differences {
		if (d.calls == "" || slices.Contains(strings.Fields(d.calls), a.Call)) && (d.mode == "" || d.mode == string(f.players[0].mode)) &&
			in(d.namespaces, kindOf(a)) && in(d.supervised, kindOf(b)) &&
			regexp.MustCompile(d.args).MatchString(a.Args) && regexp.MustCompile(d.says).MatchString(b.Result) {
			return &f.differences[i]
		}
	}
	return nil
}
