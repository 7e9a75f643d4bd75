package secretenv

import (
	"os"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestEnvironRegion: the region is as long as what /proc shows of it.
func TestEnvironRegion(t *testing.T) {
	t.Parallel()
	start, end, err := environRegion()
	rig.Must(t, err)
	environ, err := os.ReadFile("/proc/self/environ")
	rig.Must(t, err)
	rig.Is(t, end-start, int64(len(environ)), "bytes of the region")
}
