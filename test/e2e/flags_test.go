package e2e

import (
	"os"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestFlags: docs/flags.md has the flags of the programs as their help has them.
func TestFlags(t *testing.T) {
	t.Parallel()
	want, err := rig.Command(t, "sh", "../../tools/flags.sh", rig.Agent(t), rig.Registry(t)).Output()
	rig.Must(t, err)
	got := rig.Value(os.ReadFile("../../docs/flags.md"))
	rig.Same(t, "docs/flags.md is not what the help of the programs says (make flags)", string(want), string(got))
}
