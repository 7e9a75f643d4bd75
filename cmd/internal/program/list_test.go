package program

import (
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestPrintList: columns are as wide as their widest cell, and nothing comes behind the last one.
func TestPrintList(t *testing.T) {
	t.Parallel()
	row := func(n int) []any { return []any{strings.Repeat("x", n), "", n} }
	for _, tt := range []struct {
		asJSON bool
		list   []int
		want   string
	}{
		{false, []int{1, 4}, "NAME  EMPTY  N\nx            1\nxxxx         4\n"},
		{false, nil, "NAME  EMPTY  N\n"},
		{true, []int{1, 4}, "[\n  1,\n  4\n]\n"},
		{true, nil, "[]\n"},
	} {
		var out strings.Builder
		rig.Check(t, PrintList(&out, tt.asJSON, tt.list, "NAME\tEMPTY\tN", row))
		rig.Is(t, out.String(), tt.want, "%v as JSON %v", tt.list, tt.asJSON)
	}
}
