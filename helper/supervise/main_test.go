package supervise

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain is also the main of the child that TestReachesHere starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == routesChild {
		os.Exit(routesChildMain())
	}
	goleak.VerifyTestMain(m)
}
