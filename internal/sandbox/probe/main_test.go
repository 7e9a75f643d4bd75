package probe

import (
	"os"
	"testing"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
)

// TestMain is also the main of the probe's children: Host starts this binary
// again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case Arg:
			os.Exit(Main())
		case probeChild:
			os.Exit(probeChildMain())
		}
	}
	sandboxtest.Main(m)
}
