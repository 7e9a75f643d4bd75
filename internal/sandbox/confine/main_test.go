package confine

import (
	"os"
	"testing"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
)

// TestMain is also the main of an init, and of other children: the tests start
// this binary again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case Arg:
			os.Exit(Main())
		case connectChild:
			os.Exit(connectChildMain())
		case agentChild:
			os.Exit(agentChildMain())
		case renamesChild:
			os.Exit(renamesChildMain())
		case manyPathsChild:
			os.Exit(manyPathsChildMain())
		case maskChild:
			os.Exit(maskChildMain())
		case stdioChild:
			os.Exit(stdioChildMain())
		}
	}
	sandboxtest.Main(m)
}
