package helper

import (
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// TestMain is also the main of the helpers: the tests start this binary again.
func TestMain(m *testing.M) {
	if way, ok := strings.CutPrefix(os.Args[0], garbageArgv0); ok {
		os.Exit(garbageMain(way))
	}
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case InitArg:
			os.Exit(InitMain())
		case ProbeArg:
			os.Exit(ProbeMain())
		case FSArg:
			os.Exit(FSMain())
		case mortalArg:
			os.Exit(mortalMain())
		case connectChild:
			os.Exit(connectChildMain())
		case exhaustChild:
			os.Exit(exhaustChildMain())
		case agentChild:
			os.Exit(agentChildMain())
		case renamesChild:
			os.Exit(renamesChildMain())
		case manyPathsChild:
			os.Exit(manyPathsChildMain())
		case maskChild:
			os.Exit(maskChildMain())
		case routesChild:
			os.Exit(routesChildMain())
		case stdioChild:
			os.Exit(stdioChildMain())
		case probeChild:
			os.Exit(probeChildMain())
		}
	}
	goleak.VerifyTestMain(m)
}
