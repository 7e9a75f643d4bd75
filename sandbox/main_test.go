package sandbox

import (
	"testing"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }
