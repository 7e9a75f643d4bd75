package agent

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/execagent/execagent/protocol"
)

// TestStartBounds: starts whose cost would be out of proportion to their length
// are refused.
func TestStartBounds(t *testing.T) {
	t.Parallel()
	c := newHarness(t, Config{}).attach("")
	many := make([]string, 5000)
	for i := range many {
		many[i] = "x"
	}
	policy := func(set map[string]string, only ...string) object {
		return object{
			"inherit": "none", "ignoreDefaultExcludes": true, "exclude": []string{},
			"set": set, "includeOnly": append([]string{}, only...),
		}
	}
	tests := []struct {
		name   string
		change object
		code   protocol.Code
		text   string
	}{
		{"long id", object{"processId": strings.Repeat("p", protocol.MaxProcessID+1)}, protocol.CodeInvalidParams, "processId"},
		{"long pattern", object{"envPolicy": policy(map[string]string{}, "*"+strings.Repeat("a", 25000)+"b")}, protocol.CodeInvalidParams, "includeOnly"},
		{"many patterns", object{"envPolicy": policy(map[string]string{}, many...)}, protocol.CodeInvalidParams, "includeOnly"},
		{"long name", object{"envPolicy": policy(map[string]string{strings.Repeat("a", 50000): ""}, "b*")}, protocol.CodeInvalidParams, "set"},
		{"long PATH", object{"argv": []string{"nope"}, "env": object{"PATH": strings.Repeat(":", 1<<20)}}, protocol.CodeInternal, "os error 7"},
		{"long argument", sh("p", strings.Repeat("x", 3<<20)), protocol.CodeInternal, "Argument list too long (os error 7)"},
	}
	for _, tt := range tests {
		params := sh("p", "exit 0")
		maps.Copy(params, tt.change)
		err := c.call("process/start", params, nil)
		wantCode(t, tt.name, err, tt.code)
		wantText(t, tt.name, err, tt.text)
	}
	c.must("process/start", sh("p", "exit 0"), nil)
}

// TestListedArgv cuts what process/list shows of a long command.
func TestListedArgv(t *testing.T) {
	t.Parallel()
	c := newHarness(t, Config{}).attach("")
	params := sh("p", "exit 0")
	params["argv"] = []string{"/bin/true", strings.Repeat("x", 100_000)}
	c.must("process/start", params, nil)
	var list protocol.ListResult
	c.must("process/list", object{}, &list)
	total := 0
	for _, arg := range list.Processes[0].Argv {
		total += len(arg)
	}
	if total > 4096 || list.Processes[0].Argv[0] != "/bin/true" {
		t.Errorf("%d bytes of argv are listed, at most 4096", total)
	}
}

// TestManyWatches: the watches of a connection are bounded, and ended ones do not count.
func TestManyWatches(t *testing.T) {
	t.Parallel()
	c := newHarness(t, Config{}).attach("")
	dir := t.TempDir()
	for i := range protocol.MaxWatches {
		c.must("fs/watch", object{"watchId": fmt.Sprint(i), "path": uri(dir)}, nil)
	}
	one := object{"watchId": "one", "path": uri(dir)}
	wantCode(t, "one more", c.call("fs/watch", one, nil), protocol.CodeInvalidRequest)
	c.must("fs/unwatch", object{"watchId": "0"}, nil)
	c.must("fs/watch", one, nil)
}
