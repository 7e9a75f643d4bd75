package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestKeysLeaveMemory looks for the agent's own keys in the memory of the real
// binary: a client may read the memory of the agent that it uses.
func TestKeysLeaveMemory(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(rig.Agent(t), "--listen", "ws://127.0.0.1:0")
	cmd.Env = append(os.Environ(), "STAYS=kept-0", "OPENAI_API_KEY=hidden-1", "aws_Secret_Access_Key=hidden-2")
	agent := rig.Start(t, cmd)
	agent.Line(t) // it listens
	if !inMemory(t, cmd.Process.Pid, "kept-0") {
		t.Error("a variable that stays was not found: the search is broken")
	}
	for _, hidden := range []string{"hidden-1", "hidden-2"} {
		if inMemory(t, cmd.Process.Pid, hidden) {
			t.Errorf("%s is in the memory of the agent", hidden)
		}
	}
	agent.Terminate(t)
}

// inMemory looks for a text in everything that a process may write to.
func inMemory(t *testing.T, pid int, text string) bool {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	rig.Must(t, err)
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
