package supervise

import (
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/pathname"
	"github.com/execagent/execagent/sandbox"
)

// A policy can name UNIX sockets and devices. A path of the command is followed as the command sees it,
// and the name of what is found must be one of these. If a service has replaced its socket, the new one
// may be reached. Where the command can move files to the name once its socket is gone, there may be another
// socket by then: it is refused, unless it is the one that was there at the start, or was made since.

// identity is the identity of an object.
type identity struct {
	major, minor uint32
	inode        uint64
}

// identify returns the objects at the paths that exist.
func identify(paths []string) map[string]identity {
	all := map[string]identity{}
	for _, name := range paths {
		var st unix.Statx_t
		if err := unix.Statx(unix.AT_FDCWD, name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO, &st); err == nil {
			all[name] = identity{st.Dev_major, st.Dev_minor, st.Ino}
		}
	}
	return all
}

// isNamed reports whether a socket with a name of the policy is one that the policy means.
func (n *Notifier) isNamed(name string, st *unix.Statx_t) bool {
	if n.config.Policy.Access(pathname.Parent(name)) != sandbox.Write {
		return true
	}
	first, ok := n.first[name]
	return ok && first == identity{st.Dev_major, st.Dev_minor, st.Ino}
}

// Folders opens the folders of the sockets, by the paths of the sockets. A view may have a mount on a
// socket, through which a socket that replaces it on the host cannot be seen. Missing folders are left out.
func Folders(sockets []string) (map[string]int, error) {
	folders := map[string]int{}
	for _, name := range sockets {
		fd, err := unix.Openat2(unix.AT_FDCWD, pathname.Parent(name), &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
		})
		switch err {
		case nil:
			folders[name] = fd
		case unix.ENOENT, unix.ENOTDIR, unix.EACCES, unix.ELOOP:
		default:
			return nil, err
		}
	}
	return folders, nil
}

// takePresent replaces the object of a, whose name is one of the policy, by the socket that the host has
// at that name now. It returns the name. An object with another name stays.
func (n *Notifier) takePresent(a *address, name string) (string, error) {
	named, removed := strings.CutSuffix(name, " (deleted)") // as procfs says of a mount whose object is gone
	if _, ok := n.config.Folders[named]; !ok {
		named, removed = name, false
	}
	folder, ok := n.config.Folders[named]
	if !ok {
		return name, nil
	}
	fd, err := unix.Openat2(folder, path.Base(named), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil && removed {
		return "", unix.ECONNREFUSED // nobody listens at the socket that the view shows
	}
	if err != nil {
		return name, nil
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if !removed && (err != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK) {
		unix.Close(fd) // the host has a mount at that name, which the folder does not show
		return name, nil
	}
	unix.Close(a.object)
	a.object = fd
	return named, err
}

// device is the number and the kind of a device.
type device struct {
	number uint64
	kind   uint32
}

// devicesAt returns the devices at the paths that exist.
func devicesAt(paths []string) map[device]bool {
	all := map[device]bool{}
	for _, name := range paths {
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err == nil {
			all[device{st.Rdev, st.Mode & unix.S_IFMT}] = true
		}
	}
	return all
}

// namesDevice reports whether the policy names the device, by whatever path it was found: a command that
// may write everything could put another device at the path.
func (n *Notifier) namesDevice(st *unix.Stat_t) bool {
	return n.devices[device{st.Rdev, st.Mode & unix.S_IFMT}]
}

// showsDevice reports whether the policy names a device at or below the path.
func (n *Notifier) showsDevice(name string) bool {
	return strings.HasPrefix(name, "/dev/") &&
		slices.ContainsFunc(n.config.Policy.Devices, func(device string) bool { return pathname.Within(device, name) })
}
