package program

import (
	"bytes"
	"errors"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestComplain: whatever an agent has said, a terminal only prints it.
func TestComplain(t *testing.T) {
	t.Parallel()
	for what, want := range map[string]string{
		"a file: ünï":            "agent: a file: ünï\n",
		"\x1b]0;title\a\x1b[2J":  "agent: \uFFFD]0;title\uFFFD\uFFFD[2J\n",
		"failed\rall is well":    "agent: failed\uFFFDall is well\n",
		"a\u202eb\u009b\xff\b\t": "agent: a\uFFFDb\uFFFD\uFFFD\uFFFD\uFFFD\n",
		"one\ntwo":               "agent: one\ntwo\n",
		"in a raw terminal\r":    "agent: in a raw terminal\r\n",
	} {
		var out bytes.Buffer
		Complain(&out, errors.New(what))
		rig.Is(t, out.String(), want, "%q is told as", what)
	}
}
