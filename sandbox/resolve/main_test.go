package resolve

import (
	"testing"

	"github.com/execagent/execagent/sandbox/internal/childtest"
)

func TestMain(m *testing.M) { childtest.Main(m) }
