package rulefile

import (
	"log"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestQuiet: a process with little room for addresses says nothing of that.
func TestQuiet(t *testing.T) {
	t.Parallel()
	if log.Writer() != os.Stderr {
		t.Error("the log is still silent")
	}
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `ulimit -v 3000000 && exec "$0" -test.run '^$'`, os.Args[0])
	out, err := cmd.CombinedOutput()
	switch {
	case strings.Contains(string(out), "Starlark"):
		t.Errorf("%q", out)
	case err != nil:
		t.Skipf("such a process does not run, as with the race detector: %q, %v", out, err)
	}
}
