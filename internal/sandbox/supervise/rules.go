package supervise

import (
	"slices"
	"strings"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/sandbox"
)

// rules are the policy in the form of [fsops.Resolver]. Like a view of namespaces,
// these rules show some things whatever the policy says: devices that every
// process may have, those that the policy names, a private /dev/shm, and procfs, about which procfs.go decides.
// Nothing below /sys may be changed.
func (n *Notifier) rules() fsops.Rules {
	policy := n.config.Policy
	r := fsops.Rules{
		Access: n.access,
		Leads:  func(path string) bool { return path == "/" || policy.Leads(path) || n.showsDevice(path) },
		Bound:  func(path string) bool { return path == devShm || policy.Bound(path) },
	}
	if len(policy.Globs) > 0 {
		r.DeniesFile = policy.DeniesFile
	}
	return r
}

// access returns the command's access to path.
func (n *Notifier) access(path string) fsops.Access {
	if n.config.Level == sandbox.NoLevel {
		return fsops.Write // only programs are searched, which the kernel judges itself
	}
	access := fsops.Access(n.config.Policy.Access(path))
	switch {
	case access == fsops.Denied:
	case n.shm.inUse() && within(path, devShm):
		return fsops.Write
	case within(path, "/proc"):
		return fsops.Read
	case within(path, "/sys"):
		return min(access, fsops.Read)
	case access == fsops.Hidden && (path == "/dev" || isOwnDevice(path) || slices.Contains(n.config.Policy.Devices, path)):
		return fsops.Read
	}
	return access
}

// within reports whether path is dir, or below it.
func within(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, dir)
	return ok && (rest == "" || rest[0] == '/')
}

// ownDevices are the names in /dev that every command has.
var ownDevices = []string{
	"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "fd", "stdin", "stdout", "stderr",
}

// isOwnDevice reports whether path is one of ownDevices, or below one.
func isOwnDevice(path string) bool {
	name, ok := strings.CutPrefix(path, "/dev/")
	name, _, _ = strings.Cut(name, "/")
	return ok && slices.Contains(ownDevices, name)
}
