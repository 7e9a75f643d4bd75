package agent

import (
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// TestUntilTrue: that something failed once does not hold for good, and that it worked does.
func TestUntilTrue(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		while time.Duration
		want  []bool
		tries int
	}{
		{0, []bool{false, false, true, true}, 3},
		{time.Hour, []bool{false, false, false, false}, 1},
	} {
		tries := 0
		can := untilTrue(tt.while, func() bool {
			tries++
			return tries == 3
		})
		for i, want := range tt.want {
			rig.Is(t, can(), want, "again after %v: call %d", tt.while, i)
		}
		rig.Is(t, tries, tt.tries, "again after %v: tries", tt.while)
	}
}
