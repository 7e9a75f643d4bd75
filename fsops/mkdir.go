package fsops

import (
	"cmp"
	"context"
	"strings"

	"golang.org/x/sys/unix"
)

// CreateDirectory makes a directory with mode 0777 less the umask. With
// recursive it also makes missing parents, and an existing directory is no
// error. Without recursive, an existing name is EEXIST and a missing parent
// ENOENT.
func (Host) CreateDirectory(_ context.Context, path string, recursive bool, links Links) error {
	var err error
	switch {
	case links == RefuseLinks:
		err = makeBeneath(path, recursive)
	case recursive:
		_, err = (*View)(nil).makeAll(path)
	default:
		err = mkdirAt(unix.AT_FDCWD, path)
	}
	return pathError("mkdir", path, err)
}

// CreateDirectory makes a directory. With recursive an existing directory is no
// error, with one exception: a read-only directory in a writable directory is
// EROFS, as if it were missing. Without recursive, an existing name is EEXIST if
// it may be written, else EROFS.
func (v *View) CreateDirectory(_ context.Context, path string, recursive bool, links Links) error {
	_, err := v.makeDirectory(path, recursive, links.lookup(0))
	return pathError("mkdir", path, err)
}

func mkdirAt(dir int, path string) error {
	for {
		if err := unix.Mkdirat(dir, path, 0o777); err != unix.EINTR {
			return err
		}
	}
}

// makeAll makes path and its missing parents. It reports whether path itself is
// new. It calls itself for each parent; PATH_MAX bounds the depth.
func (v *View) makeAll(path string) (created bool, err error) {
	if v != nil {
		return v.makeDirectory(path, true, 0)
	}
	err = mkdirAt(unix.AT_FDCWD, path)
	if err == unix.ENOENT {
		if parent, _ := splitPath(path); parent != "/" {
			if _, err := v.makeAll(parent); err != nil {
				return false, err
			}
			err = mkdirAt(unix.AT_FDCWD, path)
		}
	}
	if err == nil {
		return true, nil
	}
	var st unix.Stat_t
	if fstatAt(unix.AT_FDCWD, path, &st, 0) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return false, nil
	}
	return false, err
}

// makeBeneath makes path without passing through a link. With recursive, a name
// on the way that is no directory is ENOTDIR.
func makeBeneath(path string, recursive bool) error {
	if !recursive {
		if path == "/" {
			return unix.EEXIST
		}
		dir, name, err := openParent(path)
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		return mkdirAt(dir, name)
	}

	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW
	dir, err := openAt(unix.AT_FDCWD, "/", flags, 0)
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		if name == "" {
			continue
		}
		next, err := openAt(dir, name, flags, 0)
		if err == unix.ENOENT {
			if err = mkdirAt(dir, name); err == nil || err == unix.EEXIST {
				next, err = openAt(dir, name, flags, 0)
			}
		}
		unix.Close(dir)
		if err != nil {
			return err
		}
		dir = next
	}
	return unix.Close(dir)
}

// makeDirectory makes path, and with recursive its missing parents. It reports
// whether path itself is new.
func (v *View) makeDirectory(path string, recursive bool, how Lookup) (created bool, err error) {
	for range maxRaces {
		created, err = v.mkdir(v.paths.base, path, how)
		if err == unix.ENOENT && recursive {
			if parent, _ := splitPath(path); parent != "/" {
				if _, err := v.makeDirectory(parent, true, how); err != nil {
					return false, err
				}
				created, err = v.mkdir(v.paths.base, path, how)
			}
		}
		if err != unix.EEXIST {
			return created, err
		}
		if err = v.existing(path, recursive, how); err != unix.ENOENT {
			return false, err
		}
	}
	return false, unix.EBUSY
}

// existing returns the result of CreateDirectory if path already exists, or ENOENT
// if it has disappeared since.
func (v *View) existing(path string, recursive bool, how Lookup) error {
	p, err := v.find(v.paths.base, path, how)
	if err != nil {
		return err
	}
	p.Close()
	if !recursive {
		if p.Access == Hidden {
			return unix.EROFS
		}
		return cmp.Or(p.Writable(), error(unix.EEXIST))
	}
	switch p.fileType() {
	case unix.DT_DIR:
	case unix.DT_LNK:
		if how&refuseLinks != 0 {
			return unix.ENOTDIR
		}
		var st unix.Stat_t
		denied, err := v.target(v.paths.base, path, &st)
		switch {
		case denied:
			return unix.EACCES
		case err != nil || kindOf(&st) != unix.DT_DIR:
			return unix.EEXIST
		}
		return nil
	default:
		if how&refuseLinks != 0 {
			return unix.ENOTDIR
		}
		return unix.EEXIST
	}
	switch {
	case p.Access == Denied:
		return unix.EACCES
	case p.Access == Read && p.In.Access == Write:
		return unix.EROFS
	}
	return nil
}
