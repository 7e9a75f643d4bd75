package supervise

import (
	"testing"

	"github.com/execagent/execagent/internal/sandbox/calls"
	"github.com/execagent/execagent/sandbox"
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
		if handlers[name] == nil {
			t.Errorf("%s is left to the supervisor, which has no method for it", name)
		}
	}
	for name := range handlers {
		if !left[name] {
			t.Errorf("there is a method for %s, which no level leaves to the supervisor", name)
		}
	}
	for _, name := range moving {
		if handlers[name] == nil {
			t.Errorf("%s is said to move names and has no method", name)
		}
	}
}
