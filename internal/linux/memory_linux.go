package linux

import (
	"math"

	"golang.org/x/sys/unix"
)

// MemoryLimit returns the memory in bytes that this process and its children can have together.
// This is the lowest limit of its control group and of the visible groups above it, or the memory
// of the machine.
func MemoryLimit() int64 {
	limit := int64(math.MaxInt64)
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		if total := info.Totalram * uint64(info.Unit); total > 0 && total < math.MaxInt64 {
			limit = int64(total)
		}
	}
	return min(limit, cgroupMemory("/proc/self/cgroup", "/proc/self/mountinfo"))
}
