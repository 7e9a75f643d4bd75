package sockfd

import (
	"os"
	"testing"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
)

// TestMain is also the main of the children that tests start.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == ownTableChild {
		os.Exit(ownTableChildMain())
	}
	sandboxtest.Main(m)
}
