package profile

import (
	"reflect"
	"testing"

	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// TestWire: a profile comes back from the wire.
func TestWire(t *testing.T) {
	t.Parallel()
	want := sandbox.WorkspaceWrite("/w", "/more")
	want.Network = sandbox.NetworkEnabled
	want.Entries = append(want.Entries,
		sandbox.Entry{Path: "/x", Access: sandbox.Denied, SkipMissing: true, Replaceable: true},
		sandbox.Entry{Place: sandbox.PlaceGlob, Path: "**/*.env", Access: sandbox.Denied},
		sandbox.Entry{Place: sandbox.PlaceProjectRoots, Path: "vendor", Access: sandbox.Read},
		sandbox.Entry{Place: sandbox.PlaceMinimal, Access: sandbox.Read})
	got := rig.Value(Of(Wire(&want), "", ""))
	want.Strict = false
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
