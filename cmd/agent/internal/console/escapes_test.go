package console

import (
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func TestEscapes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pieces []string
		rest   string
		asked  asked
	}{
		{[]string{"ls\r"}, "ls\r", nothing},
		{[]string{"~."}, "", leave},
		{[]string{"~", "."}, "", leave},
		{[]string{"ls\r~."}, "", leave},
		{[]string{"ls\r", "~", ".", "rest"}, "ls\r", leave},
		{[]string{"ls\n", "~."}, "ls\n", leave},
		{[]string{"cd ~.\r"}, "cd ~.\r", nothing},
		{[]string{"~?"}, "", list},
		{[]string{"~?~."}, "", leave},
		{[]string{"~~.\r"}, "~.\r", nothing},
		{[]string{"~/bin\r"}, "~/bin\r", nothing},
		{[]string{"~\r~."}, "", leave},
		{[]string{"~\r", "x"}, "~\rx", nothing},
		{[]string{"\x03~."}, "\x03~.", nothing},
	} {
		var e escapes
		var rest strings.Builder
		var last asked
		for _, piece := range tt.pieces {
			r, a := e.filter([]byte(piece))
			rest.Write(r)
			if a != nothing {
				last = a
			}
			if a == leave {
				break
			}
		}
		rig.Is(t, rest.String(), tt.rest, "%q: passed on", tt.pieces)
		rig.Is(t, last, tt.asked, "%q: asked for", tt.pieces)
	}
}
