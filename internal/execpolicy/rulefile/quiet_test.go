package rulefile

import (
	"io"
	"log"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestLoud: whoever logs later is heard.
func TestLoud(t *testing.T) {
	rig.Is(t, log.Writer() == io.Discard, false, "the log is still silent")
}

// TestQuiet: a process with little room for addresses says nothing of that.
func TestQuiet(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `ulimit -v 3000000 && exec "$0" -test.run '^$'`, os.Args[0])
	out, err := cmd.CombinedOutput()
	switch {
	case strings.Contains(string(out), "Starlark"):
		t.Errorf("%q", out)
	case err != nil:
		t.Skipf("such a process does not run, as with the race detector: %q, %v", out, err)
	}
}
