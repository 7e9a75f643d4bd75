package fsops_test

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/test/rig"
)

// TestViewSteps: for a path without links a view does not go step by step, however deep it is, also
// where the last directory is missing. The questions to the rules tell: each step has one.
func TestViewSteps(t *testing.T) {
	t.Parallel()
	root := tree(t)
	deep := filepath.Join(root, strings.Repeat("d/", 20))
	grow(t, deep, "f =x", "sub/", "l -> f")
	questions := 0
	v, err := fsops.NewView(fsops.Rules{
		Access: func(string) fsops.Access { questions++; return fsops.Read },
		Leads:  func(string) bool { return true },
		Bound:  func(string) bool { return false },
	})
	rig.Must(t, err)
	defer v.Close()
	for _, tt := range []struct {
		line string
		most int
		err  error
	}{
		{line: "read f", most: 1}, {line: "stat f", most: 1}, {line: "stat sub", most: 1}, {line: "real f", most: 1},
		{line: "read nope", most: 3, err: unix.ENOENT},
		{line: "read nope/nope", most: 4, err: unix.ENOENT},
		{line: "read l", most: 6},
	} {
		questions = 0
		_, err := operation(t.Context(), v, deep, tt.line)
		checkErr(t, err, tt.err)
		if questions > tt.most {
			t.Errorf("%s: the rules were asked %d times, %d at most were wanted", tt.line, questions, tt.most)
		}
	}
}
