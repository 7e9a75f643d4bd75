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
	if to, err := filepath.EvalSymlinks(filepath.Join(p.dir, toolName)); err != nil || to != program {
		t.Errorf("the tool is %q, %v", to, err)
	}
	for _, tt := range []struct{ env, want []string }{
		{nil, nil},
		{[]string{"A=1"}, []string{"A=1"}},
		{[]string{"PATH="}, []string{"PATH="}},
		{[]string{"A=1", "PATH=/bin:/x", "XPATH=/"}, []string{"A=1", "PATH=" + p.dir + ":/bin:/x", "XPATH=/"}},
		{[]string{"PATH=/bin:" + p.dir}, []string{"PATH=/bin:" + p.dir}},
	} {
		before := slices.Clone(tt.env)
		if got := p.Before(tt.env); !slices.Equal(got, tt.want) || !slices.Equal(tt.env, before) {
			t.Errorf("%q became %q, want %q", before, got, tt.want)
		}
	}
	var none *Provided
	if got := none.Before([]string{"PATH=/bin"}); !slices.Equal(got, []string{"PATH=/bin"}) || none.Paths() != nil {
		t.Errorf("without a tool: %q, %q", got, none.Paths())
	}
	rig.Check(t, p.Close())
	if _, err := os.Lstat(p.dir); !os.IsNotExist(err) {
		t.Errorf("the directory is left: %v", err)
	}
}
