package enforce

import (
	"testing"

	"github.com/execagent/execagent/internal/sandbox/calls"
	"github.com/execagent/execagent/test/rig"
)

// TestCallNumbers holds the numbers in package calls against those of x/sys. A
// call that x/sys does not know on one architecture has the number -1 there.
func TestCallNumbers(t *testing.T) {
	t.Parallel()
	numbers := systemCalls(t)
	seen := map[string]bool{}
	for _, call := range calls.Calls() {
		rig.Is(t, seen[call.Name], false, "%s has two rows", call.Name)
		seen[call.Name] = true
		for arch, got := range map[string]int{"amd64": call.AMD64, "arm64": call.ARM64} {
			want := -1
			if number, ok := numbers[arch][call.Name]; ok {
				want = int(number)
			}
			rig.Is(t, got, want, "%s on %s", call.Name, arch)
		}
	}
}
