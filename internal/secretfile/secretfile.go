// Package secretfile finds out whether other users can read or change a file
// that holds a secret.
package secretfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

const (
	groupWrite, othersWrite fs.FileMode = 0o020, 0o002
	groupRead, othersRead   fs.FileMode = 0o040, 0o004
)

// maxLinks is how many symbolic links a path may lead through (path_resolution(7)).
const maxLinks = 40

// mounts are where container engines put secrets.
const mounts = "/run/secrets/"

// Check looks at a file with a secret that is about to be used. Others are all users but this
// one and root. If others can change the file, or put another one in its place, the file must
// not be used: the error says why, and what to do. If they can read it, warning says that, with
// the command that mends it.
//
// Only the file and the folders and links on the way to it count, with their owners and modes. A
// folder that others may write will do if it is sticky, as /tmp is, and what is in it belongs to
// this user or root. A group that has the number of its user is theirs alone, as most systems
// make one for each user. The group of a file of root's may read it: so keys in /etc/ssl are
// given to a service.
//
// On mounts of secrets those who use the secret do not choose the modes, so less is asked.
// Whatever else is read-only, such as all of the file system for a service of systemd, may still
// be changed by others elsewhere.
//
//   - What is mounted read-only in /run/secrets (or /var/run/secrets, a link to it) or in the
//     folder of credentials of systemd comes from whoever set up the mounts: neither owner nor
//     mode is asked for, and nobody is warned. So Docker mounts secrets.
//   - In a volume of Kubernetes, on a tmpfs that is mounted read-only, no mode is asked for: the
//     files have 0644 by default, and the group of the pod may write the folders.
//   - Nobody is warned of a file of root's in /run/secrets. podman mounts secrets there with mode
//     0444 and not read-only.
//
// Check says nothing of what is no regular file, such as a pipe of a shell, nor of a path that it
// cannot look at: whoever reads the file gets that error.
func Check(path string) (warning string, err error) {
	absolute, err := filepath.Abs(path)
	if path == "" || err != nil {
		return "", nil
	}
	info, err := os.Stat(absolute)
	if err != nil || !info.Mode().IsRegular() {
		return "", nil
	}
	at, err := walk(absolute, replaceable)
	if errors.Is(err, errUnknown) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("%s must not be used: %w", path, err)
	}
	mount := mountOf(at)
	if mount == engine || mount == volume && trusted(owner(info)) {
		return "", nil
	}
	switch uid := owner(info); {
	case !trusted(uid):
		return "", fmt.Errorf("%s must not be used: it belongs to uid %d, who can change it (chown %d)", path, uid, os.Geteuid())
	case writable(info):
		return "", fmt.Errorf("%s must not be used: it has mode %04o, others can change it (chmod go-w)", path, info.Mode().Perm())
	case info.Mode()&othersRead == 0 && (info.Mode()&groupRead == 0 || uid == 0 || private(info)):
		return "", nil
	case uid == 0 && strings.HasPrefix(at, mounts):
		return "", nil
	case uid == 0:
		return fmt.Sprintf("%s has mode %04o: others can read it (chmod o-r)", path, info.Mode().Perm()), nil
	}
	return fmt.Sprintf("%s has mode %04o: others can read it (chmod 600)", path, info.Mode().Perm()), nil
}

// Refuse is the error of [Check] alone.
func Refuse(path string) error {
	_, err := Check(path)
	return err
}

// mountKind is what a mount is for.
type mountKind uint8

const (
	ordinary mountKind = iota
	engine             // secrets, read-only, where container engines and systemd put them
	volume             // secrets, read-only, as Kubernetes mounts them
)

// errUnknown is the error of walk for a path that cannot be looked at.
var errUnknown = errors.New("unknown")

// walk returns where a path leads, without links. It calls check for each entry of a folder on
// the way, and fails if that does.
func walk(path string, check func(at string, folder os.FileInfo, next string, entry os.FileInfo) error) (string, error) {
	const separator = string(filepath.Separator)
	at, names, links := separator, strings.Split(path, separator), 0
	folder, err := os.Lstat(at)
	for {
		names = slices.DeleteFunc(names, func(name string) bool { return name == "" || name == "." })
		if err != nil {
			return "", errUnknown
		}
		if len(names) == 0 {
			return at, nil
		}
		next := filepath.Join(at, names[0]) // which goes up where the name is ..
		entry, lstatErr := os.Lstat(next)
		if lstatErr != nil {
			return "", errUnknown
		}
		if err := check(at, folder, next, entry); err != nil {
			return "", err
		}
		names = names[1:]
		if entry.Mode()&fs.ModeSymlink == 0 {
			at, folder = next, entry
			continue
		}
		target, linkErr := os.Readlink(next)
		if links++; linkErr != nil || links > maxLinks {
			return "", errUnknown
		}
		if filepath.IsAbs(target) {
			at = separator
			folder, err = os.Lstat(at)
		}
		names = append(strings.Split(target, separator), names...)
	}
}

// replaceable says why others can put something else in the place of an entry of a folder; nil
// if they cannot.
func replaceable(at string, folder os.FileInfo, next string, entry os.FileInfo) error {
	mount := ordinary
	if !trusted(owner(folder)) || writable(folder) {
		mount = mountOf(at)
	}
	switch uid := owner(folder); {
	case mount == engine:
		return nil
	case !trusted(uid):
		return fmt.Errorf("the folder %s belongs to uid %d, who can replace what is in it", at, uid)
	case !writable(folder):
		return nil
	case folder.Mode()&fs.ModeSticky == 0 && mount != volume:
		return fmt.Errorf("the folder %s has mode %04o, others can replace what is in it (chmod go-w %s)", at, folder.Mode().Perm(), at)
	case !trusted(owner(entry)):
		return fmt.Errorf("%s belongs to uid %d, who can replace it", next, owner(entry))
	}
	return nil
}

// writable tells whether the mode lets others write.
func writable(info os.FileInfo) bool {
	return info.Mode()&othersWrite != 0 || info.Mode()&groupWrite != 0 && !private(info)
}

// private tells whether the group of a file has nobody but its owner.
func private(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Uid == stat.Gid && stat.Uid != 0
}

// trusted tells whether a user is this one or root. Whoever has no uid in the user namespace of
// this process may be anybody.
func trusted(uid uint32) bool {
	return (uid == 0 || int(uid) == os.Geteuid()) && !nobody(uid)
}

func owner(info os.FileInfo) uint32 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Uid
	}
	return 0
}
