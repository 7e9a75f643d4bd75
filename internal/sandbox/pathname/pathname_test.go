package pathname

import (
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func TestBelow(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, dir     string
		below, within bool
	}{
		{"/a/b", "/a", true, true},
		{"/a/b/c", "/a", true, true},
		{"/a", "/a", false, true},
		{"/a", "/", true, true},
		{"/", "/", false, true},
		{"/", "/a", false, false},
		{"/ab", "/a", false, false},
		{"/a", "/a/b", false, false},
		{"/b/a", "/a", false, false},
	} {
		got := [2]bool{Below(tt.name, tt.dir), Within(tt.name, tt.dir)}
		rig.Is(t, got, [2]bool{tt.below, tt.within}, "%s is below, or within %s", tt.name, tt.dir)
	}
}

func TestParent(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"/": "/", "/a": "/", "/a/b": "/a", "/a/b.c/d": "/a/b.c"} {
		rig.Is(t, Parent(name), want, "the parent of %s", name)
	}
}

func TestIsPseudo(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"/proc": true, "/proc/self": true, "/sys/fs": true, "/dev": true, "/dev/pts/0": true,
		"/dev/shm": false, "/dev/shm/x": false, "/device": false, "/": false, "/repo/proc": false,
	} {
		rig.Is(t, IsPseudo(name), want, "%s", name)
	}
}
