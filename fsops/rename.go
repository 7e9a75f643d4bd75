package fsops

import (
	"context"

	"golang.org/x/sys/unix"
)

// Rename moves src to dst. A link is moved, not followed. Without replace an
// existing dst is EEXIST. Between mounts the error is EXDEV. All errors are
// those of rename(2).
func (Host) Rename(_ context.Context, src, dst string, replace bool) error {
	dir, from := splitPath(src)
	if other, to := splitPath(dst); dir == other && from != "" && to != "" {
		// Looked up twice, the directory could be two: somebody may put a link in its place in between.
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return pathError("rename", src, err)
		}
		defer unix.Close(fd)
		return pathError("rename", src, renameAt(fd, from, fd, to, replace))
	}
	return pathError("rename", src, renameAt(unix.AT_FDCWD, src, unix.AT_FDCWD, dst, replace))
}

// Rename moves src to dst. A directory with a file that is denied by name is not
// moved (EACCES), because the rules might allow that file at the new place. A
// directory is not moved to a path below which there are rules (EBUSY).
func (v *View) Rename(_ context.Context, src, dst string, replace bool) error {
	return pathError("rename", src, v.rename(src, dst, replace))
}

func (v *View) rename(src, dst string, replace bool) error {
	from, err := v.find(v.paths.base, src, forWriting)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := v.resolve(v.paths.base, dst, forWriting)
	if err != nil {
		return visible(err)
	}
	defer to.Close()
	isDir := from.fileType() == unix.DT_DIR
	if err := v.paths.Removable(&from); err != nil {
		return err
	}
	if to.Exists() {
		err = v.paths.Removable(&to)
	} else {
		err = v.paths.Creatable(&to, isDir)
	}
	switch {
	case err != nil:
		return err
	case isDir:
		err = v.paths.CheckTree(&from, to.Path)
	case v.paths.rules.DeniesFile(to.Path):
		err = unix.EACCES
	}
	if err != nil {
		return err
	}
	return renameAt(from.In.FD, from.Name, to.In.FD, to.Name, replace)
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
