package agent

import (
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/agent/internal/answers"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestListingMemory runs out of the memory for what clients have not read yet:
// large listings and walks count there, small ones do not, and what they took
// is given back.
func TestListingMemory(t *testing.T) {
	t.Parallel()
	r := newHarness(t, Config{})
	r.agent.content.Wait = time.Millisecond
	c := r.attach("")
	b := newBox(t)
	large := b.repo + "/large"
	rig.Must(t, os.Mkdir(large, 0o755))
	const entries = 2000
	for i := range entries {
		rig.Must(t, os.WriteFile(fmt.Sprintf("%s/%d%s", large, i, strings.Repeat("n", 240)), nil, 0o644))
	}
	list := func(path string) object { return object{"path": uri(path)} }
	walk := func(path string) object {
		return object{"path": uri(path), "options": object{
			"maxDepth": 1, "maxDirectories": 10, "maxEntries": 50000, "followDirectorySymlinks": false, "pruneHiddenDirectories": false,
		}}
	}
	requests := []struct {
		name, method  string
		params, small object
	}{
		{"list", "fs/readDirectory", list(large), list(b.repo + "/d")},
		{"walk", "fs/walk", walk(large), walk(b.repo + "/d")},
	}
	take := func() { // waits until it is free
		rig.Must(t, r.agent.content.Acquire(t.Context(), answers.DefaultBytes))
	}
	for _, q := range requests {
		for name, sandbox := range map[string]object{"host": nil, "full read": b.readOnly(), "confined": b.view()} {
			what := q.name + " " + name
			params, small := maps.Clone(q.params), maps.Clone(q.small)
			params["sandbox"], small["sandbox"] = sandbox, sandbox
			take()
			wantCode(t, what, c.call(q.method, params, nil), protocol.CodeInternal)
			c.must(q.method, small, nil)
			r.agent.content.Release(answers.DefaultBytes)
			var got struct{ Entries []struct{} }
			c.must(q.method, params, &got)
			rig.Is(t, len(got.Entries), entries, "%s: entries", what)
		}
	}
	take()
}
