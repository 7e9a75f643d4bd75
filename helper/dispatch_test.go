package helper

import "testing"

// TestDispatchLeavesTheRest: Dispatch does nothing with arguments that users
// type, even if they look much like those of a mode.
func TestDispatchLeavesTheRest(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"agent"}, {"agent", ""}, {"agent", "sandbox"}, {"agent", "--sandbox-init"}, {"agent", "exec", "fs-helper"}, {"agent", GuardArg, "more"}} {
		if code, ok := Dispatch(args); ok || code != 0 {
			t.Errorf("%q: %d, %v", args, code, ok)
		}
	}
}
