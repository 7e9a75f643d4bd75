package helper

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain is also the main of the helpers: the tests start this binary again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case InitArg:
			os.Exit(InitMain())
		case ProbeArg:
			os.Exit(ProbeMain())
		case FSArg:
			os.Exit(FSMain())
		case agentChild:
			os.Exit(agentChildMain())
		case probeChild:
			os.Exit(probeChildMain())
		}
	}
	goleak.VerifyTestMain(m)
}
