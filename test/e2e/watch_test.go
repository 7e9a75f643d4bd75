package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestOneInotify: whatever is watched, and by however many clients, the agent has one inotify
// instance. Its user has few.
func TestOneInotify(t *testing.T) {
	t.Parallel()
	agent := startAgent(t, "none", "--listen", "ws://127.0.0.1:0")
	url, dir := agent.line(t), t.TempDir()
	for range 3 {
		c := dialed(t, url)
		for _, path := range []string{dir, "/", filepath.Join(dir, "missing")} {
			w, err := c.FS(nil).Watch(rig.Context(t), path, path == dir)
			rig.Must(t, err)
			defer w.Close()
		}
		var missing protocol.WatchMissingResult
		params := protocol.WatchMissingParams{WatchID: 1, Missing: []protocol.PathURI{protocol.NewPathURI(filepath.Join(dir, "missing"))}}
		rig.Must(t, c.Call(rig.Context(t), protocol.MethodFSWatchMissing, &params, &missing))
		rig.Is(t, missing.Watching, true, "what is missing is watched for")
	}
	links := rig.Value(filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", agent.Process.Pid)))
	instances := 0
	for _, link := range links {
		if to, _ := os.Readlink(link); to == "anon_inode:inotify" { // it may be closed meanwhile
			instances++
		}
	}
	rig.Is(t, instances, 1, "inotify instances of the agent")
}
