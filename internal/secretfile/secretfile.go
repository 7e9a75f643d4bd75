// Package secretfile finds out whether other users can read or change a file
// that holds a secret.
package secretfile

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/execagent/execagent/internal/paths"
)

const (
	groupWrite, othersWrite fs.FileMode = 0o020, 0o002
	groupRead, othersRead   fs.FileMode = 0o040, 0o004
)

// mounts are where container engines put secrets.
const mounts = "/run/secrets/"

// check is [Report] for one file.
func check(path string) (warning string, err error) {
	absolute, err := filepath.Abs(path)
	if path == "" || err != nil {
		return "", nil
	}
	info, err := os.Stat(absolute)
	if err != nil || !info.Mode().IsRegular() {
		return "", nil
	}
	var reason error
	at, err := paths.Walk(absolute, func(s paths.Step) error {
		reason = replaceable(s)
		return reason
	})
	if reason != nil {
		return "", fmt.Errorf("%s is refused: %w", path, reason)
	}
	if err != nil {
		return "", nil // it cannot be examined
	}
	mount := mountOf(at)
	if mount == engine || mount == volume && trusted(owner(info)) {
		return "", nil
	}
	switch uid := owner(info); {
	case !trusted(uid):
		return "", fmt.Errorf("%s is refused: it belongs to uid %d, who can change it (run chown %d)", path, uid, os.Geteuid())
	case writable(info):
		return "", fmt.Errorf("%s is refused: it has mode %04o, so others can change it (run chmod go-w)", path, info.Mode().Perm())
	case info.Mode()&othersRead == 0 && (info.Mode()&groupRead == 0 || uid == 0 || private(info)):
		return "", nil
	case uid == 0 && strings.HasPrefix(at, mounts):
		return "", nil
	case uid == 0:
		return fmt.Sprintf("%s has mode %04o: others can read it (run chmod o-r)", path, info.Mode().Perm()), nil
	}
	return fmt.Sprintf("%s has mode %04o: others can read it (run chmod 600)", path, info.Mode().Perm()), nil
}

// Report checks files with secrets before they are used. Others are all users except this one and
// root. If others can change or replace a file, it must not be used: the error gives the reason and
// a remedy. If they can read it, Report warns, with the command that fixes it.
//
// Only a file and the folders and links on the way to it count, with their owners and modes. A
// folder that others may write is accepted if it is sticky, like /tmp, and its entry belongs to
// this user or root. A group with the number of its user counts as private, because most systems
// make one for each user. The group of a file of root may read it, because keys in /etc/ssl are
// given to a service that way.
//
// On mounts of secrets, the user of the secret does not choose the modes, so less is required.
// Other read-only mounts, such as the whole file system of a systemd service, may still be changed
// by others elsewhere.
//
//   - Files mounted read-only in /run/secrets (or /var/run/secrets, a link to it) or in systemd's
//     folder of credentials come from the party that set up the mounts: owner and mode are not
//     checked, without a warning. Docker mounts secrets like this.
//   - In a volume of Kubernetes, on a tmpfs that is mounted read-only, the mode is not checked: the
//     files have 0644 by default, and the group of the pod may write the folders.
//   - A file of root in /run/secrets causes no warning, because podman mounts secrets there with
//     mode 0444 and not read-only.
//
// Report ignores anything but regular files, such as a pipe of a shell, and paths that it cannot
// examine: the reader of the file gets that error.
func Report(tell func(warning string), paths ...string) error {
	for _, path := range paths {
		warning, err := check(path)
		if err != nil {
			return err
		}
		if warning != "" {
			tell(warning)
		}
	}
	return nil
}

// Refuse returns only the error of [Report].
func Refuse(path string) error {
	_, err := check(path)
	return err
}

// mountKind is the purpose of a mount.
type mountKind uint8

const (
	ordinary mountKind = iota
	engine             // secrets, read-only, where container engines and systemd put them
	volume             // secrets, read-only, as Kubernetes mounts them
)

// replaceable returns the reason why others can replace an entry of a folder; nil if they cannot.
func replaceable(s paths.Step) error {
	mount := ordinary
	if !trusted(owner(s.Folder)) || writable(s.Folder) {
		mount = mountOf(s.At)
	}
	switch uid := owner(s.Folder); {
	case mount == engine:
		return nil
	case !trusted(uid):
		return fmt.Errorf("the folder %s belongs to uid %d, who can replace files in it", s.At, uid)
	case !writable(s.Folder):
		return nil
	case s.Folder.Mode()&fs.ModeSticky == 0 && mount != volume:
		return fmt.Errorf("the folder %s has mode %04o, so others can replace files in it (run chmod go-w %s)", s.At, s.Folder.Mode().Perm(), s.At)
	case !trusted(owner(s.Entry)):
		return fmt.Errorf("%s belongs to uid %d, who can replace it", s.Next, owner(s.Entry))
	}
	return nil
}

// writable reports whether the mode lets others write.
func writable(info os.FileInfo) bool {
	return info.Mode()&othersWrite != 0 || info.Mode()&groupWrite != 0 && !private(info)
}

// private reports whether the group of a file has nobody but its owner.
func private(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Uid == stat.Gid && stat.Uid != 0
}

// trusted reports whether a user is this one or root. Whoever has no uid in the user namespace of
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
