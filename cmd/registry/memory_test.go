package main

import (
	"math"
	"runtime/debug"
	"testing"

	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/test/rig"
)

// TestMemoryLimit: the flag counts, else three quarters of what there is, and the garbage
// collector gets the same limit, unless GOMEMLIMIT has given it one. The test is not
// parallel, since the limit is that of the whole process.
func TestMemoryLimit(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(math.MaxInt64))
	got, all := new(serveFlags).memoryLimit(), linux.MemoryLimit()
	rig.Is(t, got <= all/4*3 && got >= all/2, true, "%d of %d bytes", got, all)
	f := serveFlags{MemoryLimit: 100 << 20}
	limitMemory(f.memoryLimit(), "1GiB")
	rig.Is(t, debug.SetMemoryLimit(-1), math.MaxInt64, "although GOMEMLIMIT was set")
	limitMemory(f.memoryLimit(), "")
	rig.Is(t, debug.SetMemoryLimit(-1), 100<<20, "the limit of the garbage collector")
}
