package enforce

import (
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// choices has the expected answer of FiltersFor for every combination of what it depends on:
// the policy (whether files are confined, the network, all UNIX sockets, full read), the backend
// (a mount namespace, the level of a supervisor, a Landlock that keeps signals inside), whether
// programs are judged, whether connections are held, and whether the policy names sockets. In a column with a star the value makes no difference.
//
// Some combinations never occur, because sandbox.Policy.CheckBackend refuses them. They have rows
// all the same, so that no combination is answered by accident. Their supervised filters have no
// program, which fails.
const choices = `
confined network    unix read view level scoped judged held named filters                            listener
no       restricted *    *    *    *     *      no     *    *     network                            none
no       enabled    *    *    *    *     *      no     *    *     network                            none
no       managed    *    *    *    *     *      no     *    *     network                            none
no       restricted *    *    *    *     *      yes    *    *     network                            execs
no       enabled    *    *    *    *     *      yes    *    *     execs                              execs
no       managed    *    *    *    *     *      yes    *    *     network                            execs
yes      restricted *    *    *    W     yes    no     *    no    supervised-w                       calls
yes      restricted *    *    *    W     yes    no     *    yes   supervised-w-sockets               calls
yes      restricted *    *    *    W     yes    yes    *    no    supervised-w                       execs
yes      restricted *    *    *    W     yes    yes    *    yes   supervised-w-sockets               execs
yes      restricted *    *    *    W     no     no     *    no    supervised-w-unscoped              calls
yes      restricted *    *    *    W     no     no     *    yes   supervised-w-sockets-unscoped      calls
yes      restricted *    *    *    W     no     yes    *    no    supervised-w-unscoped              execs
yes      restricted *    *    *    W     no     yes    *    yes   supervised-w-sockets-unscoped      execs
yes      enabled    *    *    *    W     yes    no     *    *     supervised-w-online                calls
yes      enabled    *    *    *    W     yes    yes    *    *     supervised-w-online                execs
yes      enabled    *    *    *    W     no     no     *    *     supervised-w-online-unscoped       calls
yes      enabled    *    *    *    W     no     yes    *    *     supervised-w-online-unscoped       execs
yes      managed    *    *    *    W     yes    no     no   *     supervised-w-managed               calls
yes      managed    *    *    *    W     yes    no     yes  *     supervised-w-managed-held          calls
yes      managed    *    *    *    W     yes    yes    no   *     supervised-w-managed               execs
yes      managed    *    *    *    W     yes    yes    yes  *     supervised-w-managed-held          execs
yes      managed    *    *    *    W     no     no     no   *     supervised-w-managed-unscoped      calls
yes      managed    *    *    *    W     no     no     yes  *     supervised-w-managed-held-unscoped calls
yes      managed    *    *    *    W     no     yes    no   *     supervised-w-managed-unscoped      execs
yes      managed    *    *    *    W     no     yes    yes  *     supervised-w-managed-held-unscoped execs
yes      restricted *    *    *    R     yes    no     *    no    supervised-r                       calls
yes      restricted *    *    *    R     yes    no     *    yes   supervised-r-sockets               calls
yes      restricted *    *    *    R     yes    yes    *    no    supervised-r                       execs
yes      restricted *    *    *    R     yes    yes    *    yes   supervised-r-sockets               execs
yes      restricted *    *    *    R     no     no     *    no    supervised-r-unscoped              calls
yes      restricted *    *    *    R     no     no     *    yes   supervised-r-sockets-unscoped      calls
yes      restricted *    *    *    R     no     yes    *    no    supervised-r-unscoped              execs
yes      restricted *    *    *    R     no     yes    *    yes   supervised-r-sockets-unscoped      execs
yes      enabled    *    *    *    R     yes    no     *    *     supervised-r-online                calls
yes      enabled    *    *    *    R     yes    yes    *    *     supervised-r-online                execs
yes      enabled    *    *    *    R     no     no     *    *     supervised-r-online-unscoped       calls
yes      enabled    *    *    *    R     no     yes    *    *     supervised-r-online-unscoped       execs
yes      managed    *    *    *    R     yes    no     no   *     supervised-r-managed               calls
yes      managed    *    *    *    R     yes    no     yes  *     supervised-r-managed-held          calls
yes      managed    *    *    *    R     yes    yes    no   *     supervised-r-managed               execs
yes      managed    *    *    *    R     yes    yes    yes  *     supervised-r-managed-held          execs
yes      managed    *    *    *    R     no     no     no   *     supervised-r-managed-unscoped      calls
yes      managed    *    *    *    R     no     no     yes  *     supervised-r-managed-held-unscoped calls
yes      managed    *    *    *    R     no     yes    no   *     supervised-r-managed-unscoped      execs
yes      managed    *    *    *    R     no     yes    yes  *     supervised-r-managed-held-unscoped execs
yes      restricted *    *    *    S     yes    no     *    no    supervised-s                       calls
yes      restricted *    *    *    S     yes    no     *    yes   supervised-s-sockets               calls
yes      restricted *    *    *    S     yes    yes    *    no    supervised-s                       execs
yes      restricted *    *    *    S     yes    yes    *    yes   supervised-s-sockets               execs
yes      restricted *    *    *    S     no     no     *    no    supervised-s-unscoped              calls
yes      restricted *    *    *    S     no     no     *    yes   supervised-s-sockets-unscoped      calls
yes      restricted *    *    *    S     no     yes    *    no    supervised-s-unscoped              execs
yes      restricted *    *    *    S     no     yes    *    yes   supervised-s-sockets-unscoped      execs
yes      enabled    *    *    *    S     yes    no     *    *     supervised-s-online                calls
yes      enabled    *    *    *    S     yes    yes    *    *     supervised-s-online                execs
yes      enabled    *    *    *    S     no     no     *    *     supervised-s-online-unscoped       calls
yes      enabled    *    *    *    S     no     yes    *    *     supervised-s-online-unscoped       execs
yes      managed    *    *    *    S     yes    no     no   *     supervised-s-managed               calls
yes      managed    *    *    *    S     yes    no     yes  *     supervised-s-managed-held          calls
yes      managed    *    *    *    S     yes    yes    no   *     supervised-s-managed               execs
yes      managed    *    *    *    S     yes    yes    yes  *     supervised-s-managed-held          execs
yes      managed    *    *    *    S     no     no     no   *     supervised-s-managed-unscoped      calls
yes      managed    *    *    *    S     no     no     yes  *     supervised-s-managed-held-unscoped calls
yes      managed    *    *    *    S     no     yes    no   *     supervised-s-managed-unscoped      execs
yes      managed    *    *    *    S     no     yes    yes  *     supervised-s-managed-held-unscoped execs
yes      enabled    *    *    *    -     *      no     *    *     enabled                            calls
yes      enabled    *    *    *    -     *      yes    *    *     enabled                            execs
yes      managed    yes  *    *    -     *      no     no   *     managed-unix                       none
yes      managed    yes  *    *    -     *      no     yes  *     managed-unix-held                  calls
yes      managed    yes  *    *    -     *      yes    no   *     managed-unix                       execs
yes      managed    yes  *    *    -     *      yes    yes  *     managed-unix-held                  execs
yes      managed    no   *    *    -     *      no     no   no    managed                            none
yes      managed    no   *    *    -     *      no     no   yes   managed-sockets                    calls
yes      managed    no   *    *    -     *      no     yes  no    managed-held                       calls
yes      managed    no   *    *    -     *      no     yes  yes   managed-sockets-held               calls
yes      managed    no   *    *    -     *      yes    no   no    managed                            execs
yes      managed    no   *    *    -     *      yes    no   yes   managed-sockets                    execs
yes      managed    no   *    *    -     *      yes    yes  no    managed-held                       execs
yes      managed    no   *    *    -     *      yes    yes  yes   managed-sockets-held               execs
yes      restricted *    *    yes  -     *      no     *    no    restricted                         none
yes      restricted *    *    yes  -     *      no     *    yes   restricted-sockets                 calls
yes      restricted *    *    yes  -     *      yes    *    no    restricted                         execs
yes      restricted *    *    yes  -     *      yes    *    yes   restricted-sockets                 execs
yes      restricted *    yes  no   -     *      no     *    *     landlock                           none
yes      restricted *    yes  no   -     *      yes    *    *     landlock                           execs
yes      restricted *    no   no   -     *      no     *    *     hidden-paths,landlock              none
yes      restricted *    no   no   -     *      yes    *    *     hidden-paths,landlock              execs
`

// choiceColumns are the values of the columns of choices.
var choiceColumns = [][]string{
	{"no", "yes"},
	{"restricted", "enabled", "managed"},
	{"no", "yes"},
	{"no", "yes"},
	{"no", "yes"},
	{"-", "W", "R", "S"},
	{"no", "yes"},
	{"no", "yes"},
	{"no", "yes"},
	{"no", "yes"},
}

// TestFiltersFor goes through all 3072 combinations. Each has exactly one row.
func TestFiltersFor(t *testing.T) {
	t.Parallel()
	listeners := map[string]Listener{"none": NoListener, "calls": AskedCalls, "execs": AskedExecs}
	var rows [][]string
	for line := range strings.Lines(choices) {
		if row := strings.Fields(line); len(row) > 0 && row[0] != "confined" {
			rows = append(rows, row)
		}
	}
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
