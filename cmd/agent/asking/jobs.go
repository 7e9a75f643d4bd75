package asking

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// isOurs tells whether a process group is a part of the command: a member of it was started by this
// program, or by what this program has started. A group that cannot be looked at is not.
func isOurs(group int) bool {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return false
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if _, itsGroup := kinOf(pid); itsGroup == group && isBelow(pid) {
			return true
		}
	}
	return false
}

// isBelow tells whether this program is an ancestor of a process.
func isBelow(pid int) bool {
	for own := os.Getpid(); pid > 1; pid, _ = kinOf(pid) {
		if pid == own {
			return true
		}
	}
	return false
}

// kinOf returns the parent of a process, and its group; 0 if it is gone.
func kinOf(pid int) (parent, group int) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0
	}
	// The name before, in parentheses, can have anything in it.
	var state string
	if _, err := fmt.Sscan(string(stat[bytes.LastIndexByte(stat, ')')+1:]), &state, &parent, &group); err != nil {
		return 0, 0
	}
	return parent, group
}
