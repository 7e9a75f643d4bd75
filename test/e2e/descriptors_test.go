package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

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
