package fsops

import (
	"context"
	"golang.org/x/sys/unix"
)

// Rename moves src to dst; links are moved, not followed. Without replace an
// existing dst is EEXIST. Between mounts it is EXDEV. The errors are those of
// rename(2).
func (Host) Rename(_ context.Context, src, dst string, replace bool) error {
	return pathError("rename", src, renameAt(unix.AT_FDCWD, src, unix.AT_FDCWD, dst, replace))
}

func renameAt(srcDir int, src string, dstDir int, dst string, replace bool) error {
	var flags uint
	if !replace {
		flags = unix.RENAME_NOREPLACE
	}
	for {
		if err := unix.Renameat2(srcDir, src, dstDir, dst, flags); err != unix.EINTR {
			return err
		}
	}
}
