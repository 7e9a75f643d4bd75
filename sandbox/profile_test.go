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
