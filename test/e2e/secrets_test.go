package e2e

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// keysLeave looks for an agent's own keys in its memory, which a client may read. What stays has to be
// there, or the search is broken.
func keysLeave(t *testing.T, pid int) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		for text, want := range map[string]bool{"kept-0": true, "hidden-1": false, "hidden-2": false} {
			rig.Is(t, inMemory(t, pid, text), want, "%s is in the memory of the agent", text)
		}
	})
}

// inMemory looks for a text in everything that a process may write to.
func inMemory(t *testing.T, pid int, text string) bool {
	t.Helper()
	maps := rig.Value(os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid)))
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Skipf("the memory of another process cannot be read here: %v", err)
	}
	defer memory.Close()
	for line := range strings.Lines(string(maps)) {
		var start, end uint64
		var mode string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &start, &end, &mode); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if mode[:2] != "rw" || end-start > 1<<30 {
			continue
		}
		region := make([]byte, end-start)
		if _, err := memory.ReadAt(region, int64(start)); err != nil {
			continue // not there yet, or any more
		}
		if bytes.Contains(region, []byte(text)) {
			return true
		}
	}
	return false
}
