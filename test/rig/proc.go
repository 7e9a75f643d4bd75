package rig

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// CPU returns the CPU time that a process itself has used, without its children: fields 14 and 15
// of proc_pid_stat(5), in hundredths of a second. It is 0 of a process that is gone.
func CPU(pid int) time.Duration {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond
}

// Memory returns a member of proc_pid_status(5), such as VmRSS, in KiB, and whether there is one:
// not of a process that is gone.
func Memory(pid int, member string) (kib int, ok bool) {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(data)) {
		if value, found := strings.CutPrefix(line, member+":"); found {
			kib, err := strconv.Atoi(strings.Fields(value)[0])
			return kib, err == nil
		}
	}
	return 0, false
}
