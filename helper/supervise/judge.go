package supervise

import (
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
)

// What the policy says of an object, with the errno that a view of the namespaces
// would give (supervised.md 6): EROFS for what may only be read, EACCES for what
// is denied, ENOENT for what is hidden.

// setIDs are S_ISUID and S_ISGID. A command may leave no file with them: whoever
// executes it outside would get the ids of the agent's user.
const setIDs = 0o6000

// readable says why an object may not be opened or told about, or nil.
func readable(a fsops.Access) error {
	switch a {
	case fsops.Hidden:
		return unix.ENOENT
	case fsops.Denied:
		return unix.EACCES
	}
	return nil
}

// writable says why the object may not be changed, or nil. On the kernel's own
// file systems nothing is changed this way.
func (n *Notifier) writable(d *fsops.Dir) error {
	if err := readable(d.Access); err != nil {
		return err
	}
	if d.Access < fsops.Write || d.Kind != fsops.Ordinary {
		return unix.EROFS
	}
	return nil
}

// creatable says why nothing may appear at p, or nil.
func (n *Notifier) creatable(p *fsops.Place, isDirectory bool) error {
	if err := readable(p.Access); err != nil {
		return err
	}
	switch {
	case !isDirectory && n.config.Policy.DeniesFile(p.Path):
		return unix.EACCES
	case p.Access < fsops.Write || p.In.FD < 0 || n.writable(&p.In) != nil:
		return unix.EROFS
	}
	return nil
}

// removable says why p may be neither removed nor moved, or nil. A rule about it,
// or about something below it, keeps it in its place: rules are about paths, and
// would not go with the object.
func (n *Notifier) removable(p *fsops.Place) error {
	within := p.In.FD >= 0 && p.In.Access == fsops.Write
	switch {
	case n.config.Policy.Bound(p.Path) && (within || p.Access == fsops.Write) && p.Exists():
		return unix.EBUSY
	case p.Access < fsops.Write:
		return n.writable(&p.Dir)
	case p.In.FD < 0 || n.writable(&p.In) != nil || p.Exists() && p.Kind != fsops.Ordinary:
		return unix.EROFS
	}
	return nil
}

func isDirectory(p *fsops.Place) bool { return p.Exists() && p.Stat.Mode&unix.S_IFMT == unix.S_IFDIR }

// ownPath is a path by which the object that fd is of is found again, whatever
// belongs to its name by now; proc_pid_fd(5).
func ownPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
