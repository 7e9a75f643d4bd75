package agent

import (
	"errors"
	"testing"

	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/test/rig"
)

// TestFailedStartLeavesNoCgroup: a start that is refused after its control group was made takes
// that away.
func TestFailedStartLeavesNoCgroup(t *testing.T) {
	t.Parallel()
	groups, err := procs.NewCgroups(procs.CgroupLimits{})
	if errors.Is(err, procs.ErrNotDelegated) {
		t.Skip(err)
	}
	rig.Must(t, err)
	c := newHarness(t, Config{Cgroups: groups, RequireNetworkEnforcement: true, StateDir: t.TempDir() + "/state"}).attach("")
	params := sh("p", "true")
	params["sandbox"] = managed("enabled", special("root", "read"))
	rig.Is(t, c.call("process/start", params, nil) != nil, true, "the start is refused")
	rig.Check(t, groups.Close()) // it fails while a group is left
}
