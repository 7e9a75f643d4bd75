package helper

import (
	"fmt"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestDispatchLeavesTheRest: Dispatch does nothing with arguments that users
// type, even if they look much like those of a mode.
func TestDispatchLeavesTheRest(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"agent"}, {"agent", ""}, {"agent", "sandbox"}, {"agent", "--sandbox-init"}, {"agent", "exec", "fs-helper"}, {"agent", GuardArg, "more"}} {
		code, ok := Dispatch(args)
		rig.Is(t, fmt.Sprint(code, ok), "0 false", "%q", args)
	}
}
