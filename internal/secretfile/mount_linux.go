package secretfile

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
)

// mountOf tells which mount has what is at a path without links. What cannot be told is on no
// mount of secrets.
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

// isMountPoint tells whether something is mounted at a path; not where the kernel, before 5.8,
// cannot say so.
func isMountPoint(path string) bool {
	var stat unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, 0, &stat)
	return err == nil && stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// nobody tells whether a uid stands for all who have none in the user namespace of this process.
func nobody(uid uint32) bool { return linux.IsNobody(uid) }
