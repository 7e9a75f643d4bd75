package console

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
)

// isOurs reports whether a process group belongs to the command: this program is an ancestor of a
// member of the group.
func isOurs(group int) bool {
	for _, pid := range linux.PIDs() {
		if its, err := unix.Getpgid(pid); err == nil && its == group && isBelow(pid) {
			return true
		}
	}
	return false
}

// isBelow reports whether this program is an ancestor of a process.
func isBelow(pid int) bool {
	for own := os.Getpid(); pid > 1; {
		if pid == own {
			return true
		}
		stat, err := linux.StatOf(pid)
		if err != nil {
			return false
		}
		pid = stat.Number(linux.StatParent)
	}
	return false
}
