package fsops

import (
	"context"

	"golang.org/x/sys/unix"
)

// Rename moves src to dst. A link is moved, not followed. Without replace an
// existing dst is EEXIST. Between mounts the error is EXDEV. All errors are
// those of rename(2).
func (Host) Rename(_ context.Context, src, dst string, replace bool) error {
	return pathError("rename", src, renameAt(unix.AT_FDCWD, src, unix.AT_FDCWD, dst, replace))
}

// Rename moves src to dst. A directory that holds a file denied by its name is not
// moved (EACCES): at the new place the rules might allow that file.
func (v *View) Rename(_ context.Context, src, dst string, replace bool) error {
	return pathError("rename", src, v.rename(src, dst, replace))
}

func (v *View) rename(src, dst string, replace bool) error {
	from, err := v.find(v.base, src, forWriting)
	if err != nil {
		return err
	}
	defer from.close()
	to, err := v.resolve(v.base, dst, forWriting)
	if err != nil {
		return visible(err)
	}
	defer to.close()
	isDir := from.fileType() == unix.DT_DIR
	if err := v.removable(&from); err != nil {
		return err
	}
	if to.exists() {
		err = v.removable(&to)
	} else {
		err = v.creatable(&to, isDir)
	}
	switch {
	case err != nil:
		return err
	case isDir:
		err = v.checkTree(&from)
	case v.rules.DeniesFile(to.path):
		err = unix.EACCES
	}
	if err != nil {
		return err
	}
	return renameAt(from.in.fd, from.name, to.in.fd, to.name, replace)
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
