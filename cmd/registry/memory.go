package main

import (
	"math"
	"runtime/debug"

	"github.com/execagent/execagent/internal/linux"
)

// minMemoryLimit is the least value of --memory-limit, in bytes. A registry with an embedded store
// needs 30 MiB when nobody is connected.
const minMemoryLimit = 64 << 20

// memoryLimit returns how much memory the process may use, in bytes: the value of the flag, else
// three quarters of the available memory, or 0 if that is unknown.
func (f *serveFlags) memoryLimit() int64 {
	if f.MemoryLimit > 0 {
		return int64(f.MemoryLimit)
	}
	all := linux.MemoryLimit()
	if all == math.MaxInt64 {
		return 0
	}
	return all / 4 * 3
}

// limitMemory makes the garbage collector keep memory below limit. If the variable GOMEMLIMIT is
// set, its limit stays.
func limitMemory(limit int64, variable string) {
	if variable == "" && limit > 0 {
		debug.SetMemoryLimit(limit)
	}
}
