package secretfile

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
)

// mountOf returns the kind of the mount at a path without links. An unknown mount counts as
// ordinary.
func mountOf(path string) mountKind {
	var stat unix.Statfs_t
	if unix.Statfs(path, &stat) != nil || stat.Flags&unix.ST_RDONLY == 0 {
		return ordinary
	}
	point := path
	for !isMountPoint(point) {
		if point == "/" {
			return ordinary
		}
		point = filepath.Dir(point)
	}
	credentials := os.Getenv("CREDENTIALS_DIRECTORY")
	switch {
	case point == "/":
		return ordinary
	case within(point, strings.TrimSuffix(mounts, "/")), credentials != "" && within(point, filepath.Clean(credentials)):
		return engine
	case (stat.Type == unix.TMPFS_MAGIC || stat.Type == unix.RAMFS_MAGIC) && isVolume(point):
		return volume
	}
	return ordinary
}

// isMountPoint reports whether something is mounted at a path; false before Linux 5.8, which cannot
// say.
func isMountPoint(path string) bool {
	var stat unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, 0, &stat)
	return err == nil && stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// nobody reports whether a uid stands for all users without a uid in the user namespace of this
// process.
func nobody(uid uint32) bool { return linux.IsNobody(uid) }
