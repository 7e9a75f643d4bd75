package target

import (
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func TestAddresses(t *testing.T) {
	t.Parallel()
	for _, row := range rig.Rows(t, "testdata/contexts.txt", "addresses", 3) {
		rig.Is(t, ListenURL(row[0]), row[1], "listening on %q", row[0])
		rig.Is(t, DialURL(row[0]), row[2], "dialling %q", row[0])
	}
}
