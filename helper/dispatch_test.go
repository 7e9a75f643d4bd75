package helper

import "testing"

// A mode is entered by its own argument alone; what users type is none.
func TestDispatchLeavesTheRest(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"agent"}, {"agent", ""}, {"agent", "sandbox"}, {"agent", "--sandbox-init"}, {"agent", "exec", "fs-helper"}, {"agent", GuardArg, "more"}} {
		if code, ok := Dispatch(args); ok || code != 0 {
			t.Errorf("%q: %d, %v", args, code, ok)
		}
	}
}
