package capability

import (
	"strings"
	"testing"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestForget: what a step does not use goes before there is no room, and all that is kept counts.
func TestForget(t *testing.T) {
	t.Parallel()
	thread := rig.Value(New(Config{}))
	root := func(id string) Root {
		return Root{ID: id, EnvironmentID: "e", Path: protocol.NewPathURI("/")}
	}
	// step keeps roots of a size, and uses others that are known.
	step := func(size int, ids string, known ...string) (errs []string) {
		p := &place{standing: standing{id: "e"}}
		var resolved []Resolved
		for id := range strings.FieldsSeq(ids) {
			p.missing = append(p.missing, root(id))
			p.found = append(p.found, finding[Found]{value: &Found{}, size: size})
			resolved = append(resolved, Resolved{Root: root(id)})
		}
		for _, id := range known {
			resolved = append(resolved, Resolved{Root: root(id)})
		}
		for _, r := range thread.view(resolved, places{p}).Roots {
			if r.Found == nil {
				t.Fatalf("%s is not known", r.ID)
			}
			if r.Err != nil {
				errs = append(errs, r.ID)
			}
		}
		sum := 0
		for _, e := range thread.roots {
			sum += e.size
		}
		rig.Is(t, sum == thread.kept && sum <= MaxKept, true, "%d bytes are kept, %d are counted", sum, thread.kept)
		return errs
	}
	const part = MaxKept / 4
	rig.Is(t, len(step(part, "a b c")), 0, "errors")
	rig.Is(t, len(step(part, "d e", "a")), 0, "errors")
	rig.Is(t, len(thread.roots), 3, "roots")
	rig.Same(t, "errors", []string{"h"}, step(part, "f g h", "a", "d"))
	rig.Is(t, len(step(part, "i", "a")), 0, "errors")
	rig.Is(t, len(thread.roots), 2, "roots")
	// Small ones count by their number.
	for i := range maxEntries + 10 {
		step(1, "x"+strings.Repeat("x", i), "a")
	}
	if len(thread.roots) > maxEntries+1 || thread.roots[rootKey{root("a"), ""}].value == nil {
		t.Errorf("%d roots are kept", len(thread.roots))
	}
}
