package resolve

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
)

// TestMain has no test depend on what lies above its directories: in the temporary directory that
// sandboxtest makes there is a .git.
func TestMain(m *testing.M) {
	sandboxtest.ChildMain(m, func() { ceiling, _ = filepath.EvalSymlinks(os.TempDir()) })
}
