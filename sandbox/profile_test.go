package sandbox

import "testing"

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
		if got := TmpDir(tt.environ); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.environ, got, tt.want)
		}
	}
}
