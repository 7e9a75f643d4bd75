package files

import (
	"os"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
)

// TestMain is also the main of the helpers: the tests start this binary again.
func TestMain(m *testing.M) {
	if way, ok := strings.CutPrefix(os.Args[0], garbageArgv0); ok {
		os.Exit(garbageMain(way))
	}
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case Arg:
			os.Exit(Main())
		case mortalArg:
			os.Exit(mortalMain())
		case exhaustChild:
			os.Exit(exhaustChildMain())
		}
	}
	sandboxtest.Main(m)
}
