package fsops

import (
	"golang.org/x/sys/unix"
)

// Rename moves src to dst; links are moved, not followed. Without replace an
// existing dst is EEXIST. Between mounts it is EXDEV. The errors are those of
// rename(2).
func Rename(src, dst string, replace bool) error {
	var flags uint
	if !replace {
		flags = unix.RENAME_NOREPLACE
	}
	for {
		err := unix.Renameat2(unix.AT_FDCWD, src, unix.AT_FDCWD, dst, flags)
		if err != unix.EINTR {
			return pathError("rename", src, err)
		}
	}
}
