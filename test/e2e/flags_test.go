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
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../docs/flags.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Error("docs/flags.md differs from the help of the programs: run make flags")
	}
}
