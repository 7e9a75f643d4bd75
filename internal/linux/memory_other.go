//go:build !linux

package linux

import "math"

// MemoryLimit returns the largest number: nothing is known of a limit.
func MemoryLimit() int64 { return math.MaxInt64 }
