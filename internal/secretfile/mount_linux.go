package secretfile

import (
	"os"
	"strings"
	"sync"
	"syscall"
)

// readOnly tells whether a file is on a file system, or below a mount, that is read-only.
func readOnly(path string) bool {
	const flag = 0x0001 // ST_RDONLY, statfs(2)
	var stat syscall.Statfs_t
	return syscall.Statfs(path, &stat) == nil && stat.Flags&flag != 0
}

// overflow is the uid of those who have none in a user namespace (user_namespaces(7)).
const overflow = 65534

// outside tells whether a uid stands for all who have none in the user namespace of this process.
func outside(uid uint32) bool { return uid == overflow && partial() }

// partial tells whether this process is in a user namespace in which not all users have a uid.
var partial = sync.OnceValue(func() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(text)), " ") != "0 0 4294967295"
})
