package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestDescriptorsUnderWay: a user may have only so many descriptors in messages that nobody has
// received yet. A command that uses up that number keeps no helper of the agent from handing
// files over, and no other command from being started.
func TestDescriptorsUnderWay(t *testing.T) {
	rig.Tier(t, rig.Merge)
	for _, site := range machineSites() {
		for _, limit := range []string{"1024", "4096", "16384"} {
			t.Run(site.name+"/"+limit, func(t *testing.T) {
				prlimit, err := exec.LookPath("prlimit")
				rig.Must(t, err)
				site.through = []string{prlimit, "--nofile=" + limit, "--"}
				r := newEscapeRig(t, site)
				p := r.start(t, "ww", "descriptors")
				var said strings.Builder
				for ev, err := range p.Events(rig.Context(t)) {
					rig.Must(t, err)
					if said.Write(ev.Data); strings.HasSuffix(said.String(), "\n") {
						break
					}
				}
				var sent, most int
				if _, err := fmt.Sscanf(said.String(), "ready %d\n", &sent); err != nil {
					t.Fatalf("%q: %v", said.String(), err)
				}
				if _, err := fmt.Sscan(limit, &most); err != nil || sent < most/2 {
					t.Fatalf("only %d of %s are under way, %v", sent, limit, err)
				}
				rig.Is(t, textOf(r.client.FS(r.policy("ww")).ReadFile(rig.Context(t), r.repo+"/file")), r.secret, "a file request")
				rig.Is(t, outcome(t, r.start(t, "net", "privileged")).code, 13, "another command: exit code")
			})
		}
	}
}

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
