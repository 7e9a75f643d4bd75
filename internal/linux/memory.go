package linux

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// cgroupMemory returns the lowest limit of the control groups in bytes, or the largest number if
// there is no limit. The files are those of [FindCgroup].
func cgroupMemory(cgroupFile, mountinfoFile string) int64 {
	limit := int64(math.MaxInt64)
	for _, version := range []struct{ controller, file string }{
		{"", "memory.max"},
		{"memory", "memory.limit_in_bytes"}, // v1
	} {
		mount, dir, err := FindCgroup(cgroupFile, mountinfoFile, version.controller)
		if err != nil {
			continue // there is no such hierarchy, or it cannot be seen
		}
		for {
			// A text that is not a number means no limit: v2 writes "max", and its root has no such file.
			if text, err := os.ReadFile(filepath.Join(dir, version.file)); err == nil {
				if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 {
					limit = min(limit, n)
				}
			}
			if dir == mount || len(dir) <= len(mount) {
				break
			}
			dir = filepath.Dir(dir)
		}
	}
	return limit
}
