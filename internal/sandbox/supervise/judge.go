package supervise

import (
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
)

// setIDs are S_ISUID and S_ISGID. A command may leave no file with them: whoever
// executes it outside would get the ids of the agent's user.
const setIDs = 0o6000

func isDirectory(p *fsops.Place) bool { return p.Exists() && p.Stat.Mode&unix.S_IFMT == unix.S_IFDIR }

// ownPath is a path by which the object that fd is of is found again, whatever
// belongs to its name by now; proc_pid_fd(5).
func ownPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
