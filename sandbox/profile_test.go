package sandbox

import (
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func TestTmpDir(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		environ []string
		want    string
	}{
		{nil, ""},
		{[]string{"TMPDIR="}, ""},
		{[]string{"TMPDIR=a/b"}, ""},
		{[]string{"TMPDIR=/a/../b/"}, "/b"},
		{[]string{"TMPDIR=/a", "TMPDIR=/b"}, "/a"},
		{[]string{"XTMPDIR=/a"}, ""},
	} {
		rig.Is(t, TmpDir(tt.environ), tt.want, "%q", tt.environ)
	}
}

// TestStrict: a strict profile refuses entries that have no effect; another one takes them.
func TestStrict(t *testing.T) {
	t.Parallel()
	for want, e := range map[string]Entry{
		"":                               {Place: PlaceProjectRoots, Path: "sub", Access: Denied},
		"1 has no effect: a pattern":     {Place: PlaceGlob, Path: "/x/*", Access: Read},
		"1 has no effect: what programs": {Place: PlaceMinimal, Access: Write},
		"1 has no effect: the working":   {Place: PlaceCwd, Access: Write},
		"1 has no effect: the place":     {Place: PlaceUnknown, Access: Read},
		"not below a workspace root":     {Place: PlaceProjectRoots, Path: "../x", Access: Write},
	} {
		p := ReadOnly()
		p.Cwd, p.WorkspaceRoots, p.Entries = "/w", []string{"/w"}, append(p.Entries, e)
		rig.Says(t, rig.Err(p.Compile()), want, "%+v", e)
		p.Strict = false
		rig.Must(t, rig.Err(p.Compile()))
	}
	p := WorkspaceWrite("/w", "/v")
	rig.Must(t, rig.Err(p.Compile()))
	p.WorkspaceRoots = nil
	rig.Says(t, rig.Err(p.Compile()), "1 has no effect: there are no workspace roots", "no roots")
}
