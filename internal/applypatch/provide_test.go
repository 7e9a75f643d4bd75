package applypatch

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func TestProvide(t *testing.T) {
	t.Parallel()
	p, err := Provide()
	rig.Must(t, err)
	program, err := os.Executable()
	rig.Must(t, err)
	rig.Is(t, rig.Value(filepath.EvalSymlinks(filepath.Join(p.dir, toolName))), program, "the tool")
	for _, tt := range []struct{ env, want []string }{
		{nil, nil},
		{[]string{"A=1"}, []string{"A=1"}},
		{[]string{"PATH="}, []string{"PATH="}},
		{[]string{"A=1", "PATH=/bin:/x", "XPATH=/"}, []string{"A=1", "PATH=" + p.dir + ":/bin:/x", "XPATH=/"}},
		{[]string{"PATH=/bin:" + p.dir}, []string{"PATH=/bin:" + p.dir}},
	} {
		before := slices.Clone(tt.env)
		rig.Same(t, "the environment", tt.want, p.Before(tt.env))
		rig.Same(t, "the environment that was given", before, tt.env)
	}
	var none *Provided
	rig.Same(t, "without a tool", []string{"PATH=/bin"}, none.Before([]string{"PATH=/bin"}))
	rig.Is(t, none.Paths() == nil, true, "without a tool there are no paths")
	rig.Check(t, p.Close())
	rig.Is(t, rig.Err(os.Lstat(p.dir)), os.ErrNotExist, "the directory after Close")
}
