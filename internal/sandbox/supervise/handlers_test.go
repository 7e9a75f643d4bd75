package supervise

import (
	"testing"

	"github.com/execagent/execagent/internal/sandbox/calls"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// Each call that a level leaves to the supervisor has a method, and each method is one of
// such a call.
func TestHandlers(t *testing.T) {
	left := map[string]bool{}
	for _, c := range calls.Calls() {
		for level := sandbox.LevelWrites; level <= sandbox.LevelMetadata; level++ {
			if c.In(level).Action == calls.Supervisor {
				left[c.Name] = true
			}
		}
	}
	for name := range left {
		rig.Is(t, handlers[name] != nil, true, "the supervisor has a method for %s, which is left to it", name)
	}
	for name := range handlers {
		rig.Is(t, left[name], true, "a level leaves %s to the supervisor, for which there is a method", name)
	}
	for _, name := range moving {
		rig.Is(t, handlers[name] != nil, true, "%s is said to move names and has a method", name)
	}
}
