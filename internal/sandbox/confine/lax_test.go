package confine

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/enforce"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// TestLaxTimers: the timers of a supervisor are lax, those of its command are not.
func TestLaxTimers(t *testing.T) {
	t.Parallel()
	own := rig.Value(unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0))
	backend := sandbox.Backend{Layers: sandbox.LayersOf(sandbox.Supervised, sandbox.Seccomp), Landlock: enforce.LandlockABI(), Level: sandbox.LevelWrites}
	for _, limits := range []Limits{{}, {CPUSeconds: 3600}} {
		t.Run(fmt.Sprintf("limited %v", limits != (Limits{})), func(t *testing.T) {
			r := confined{policy: readOnly(t), backend: backend, limits: limits, Spec: procs.Spec{
				Argv: []string{"sh", "-c", "read own </proc/self/timerslack_ns; echo $own $PPID ready; exec sleep 1000"},
			}}.start(t)
			r.until("ready")
			said := strings.Fields(r.text())
			rig.Is(t, said[0], strconv.Itoa(own), "slack in ns of the command's timers, as of those of this process")
			text, err := os.ReadFile("/proc/" + said[1] + "/timerslack_ns")
			if os.IsPermission(err) {
				t.Skip("only root may look at the timers of others")
			}
			rig.Must(t, err)
			rig.Is(t, strings.TrimSpace(string(text)), strconv.Itoa(laxity), "slack in ns of the supervisor's timers")
		})
	}
}
