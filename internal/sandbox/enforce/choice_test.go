package enforce

import (
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

var yesNo = []string{"no", "yes"}

// choiceColumns are the values of the columns of testdata/choices.txt.
var choiceColumns = [][]string{yesNo, {"restricted", "enabled", "managed"}, yesNo, yesNo, yesNo, {"-", "W", "R", "S"}, yesNo, yesNo, yesNo, yesNo}

// TestFiltersFor goes through all 3072 combinations. Each has exactly one row.
func TestFiltersFor(t *testing.T) {
	t.Parallel()
	listeners := map[string]Listener{"none": NoListener, "calls": AskedCalls, "execs": AskedExecs}
	rows := rig.Rows(t, "testdata/choices.txt", "choices", 12)
	used := make([]bool, len(rows))
	seen := 0
	for c := range combinations(choiceColumns) {
		seen++
		var found [][]string
		for i, row := range rows {
			if covers(row, c) {
				used[i], found = true, append(found, row)
			}
		}
		if len(found) != 1 {
			t.Errorf("%v has %d rows", c, len(found))
			continue
		}
		b, p, judged := choiceOf(t, c)
		wantFilters, wantListener := found[0][len(c)], found[0][len(c)+1]
		filters, listener := FiltersFor(b, p, judged)
		var names []string
		for _, f := range filters {
			names = append(names, string(f))
		}
		rig.Is(t, strings.Join(names, ","), wantFilters, "%v: filters", c)
		rig.Is(t, listener, listeners[wantListener], "%v: listener", c)
		if p.CheckBackend(b) != nil && !(judged && p.RestrictsNothing()) {
			continue // no init gets as far as its filters
		}
		for i, f := range filters {
			asked := NoListener
			if i == len(filters)-1 {
				asked = listener
			}
			rig.Is(t, rig.Err(f.programFor(asked)), nil, "%v", c)
		}
	}
	rig.Is(t, seen, 3072, "combinations")
	for i, row := range rows {
		rig.Is(t, used[i], true, "a combination has the row %v", row)
	}
}

// combinations yields each combination of one value of every column.
func combinations(columns [][]string) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		total := 1
		for _, values := range columns {
			total *= len(values)
		}
		for n := range total {
			c := make([]string, len(columns))
			for i, values := range columns {
				c[i], n = values[n%len(values)], n/len(values)
			}
			if !yield(c) {
				return
			}
		}
	}
}

// covers reports whether the row is about the combination.
func covers(row, combination []string) bool {
	for i, value := range combination {
		if row[i] != "*" && row[i] != value {
			return false
		}
	}
	return true
}

// choiceOf returns the arguments of FiltersFor for a combination. The backend also has the layers
// that come with the ones of the combination, so that CheckBackend accepts it where it can.
func choiceOf(t *testing.T, c []string) (b sandbox.Backend, p *sandbox.Policy, judged bool) {
	t.Helper()
	p = &sandbox.Policy{Confined: c[0] == "yes", AllUnixSockets: c[2] == "yes", FullRead: c[3] == "yes", Transparent: c[8] == "yes"}
	p.Network = map[string]sandbox.Network{
		"restricted": sandbox.NetworkRestricted, "enabled": sandbox.NetworkEnabled, "managed": sandbox.NetworkManaged,
	}[c[1]]
	if c[9] == "yes" {
		p.Sockets = []string{"/s"}
	}
	b.Layers = sandbox.LayersOf(sandbox.Seccomp)
	if c[4] == "yes" {
		b.Layers = b.Layers.With(sandbox.Namespaces()...).With(sandbox.Procfs)
	}
	if i := slices.Index(choiceColumns[5], c[5]); i > 0 {
		b.Layers = b.Layers.With(sandbox.Supervised)
		b.Level = []sandbox.Level{sandbox.LevelWrites, sandbox.LevelReads, sandbox.LevelMetadata}[i-1]
	}
	b.Landlock = 5 // the last ABI before signals
	if c[6] == "yes" {
		b.Landlock = 6
	}
	return b, p, c[7] == "yes"
}
