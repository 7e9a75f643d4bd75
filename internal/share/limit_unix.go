//go:build unix

package share

import (
	"math"
	"syscall"
)

// Limit is the limit of this process for open descriptors (RLIMIT_NOFILE). Go has raised it to the
// hard limit.
func Limit() int64 {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 1024
	}
	return int64(min(limit.Cur, math.MaxInt32))
}
