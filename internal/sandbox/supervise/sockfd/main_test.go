package sockfd

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain is also the main of the children that tests start.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == ownTableChild {
		os.Exit(ownTableChildMain())
	}
	goleak.VerifyTestMain(m)
}
