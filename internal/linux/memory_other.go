//go:build !linux

package linux

import "math"

// MemoryLimit returns the largest number, because the limit is not known.
func MemoryLimit() int64 { return math.MaxInt64 }
