package supervise

import (
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
)

// setIDs are S_ISUID and S_ISGID. A command must not leave a file with them,
// because executing the file outside would give the ids of the agent's user.
const setIDs = 0o6000

func isDirectory(p *fsops.Place) bool { return p.Exists() && p.Stat.Mode&unix.S_IFMT == unix.S_IFDIR }

// ownPath returns a path that leads to the object open as fd, even if its name
// now belongs to another object; proc_pid_fd(5).
func ownPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
