package fsops

import (
	"cmp"
	"context"

	"golang.org/x/sys/unix"
)

// OpenRead opens the regular file at path for reading. The caller closes the
// descriptor.
func (v *View) OpenRead(_ context.Context, path string, links Links) (fd int, err error) {
	fd, err = v.openForRead(v.base, path, links.lookup(followLast))
	return fd, pathError("open", path, err)
}

// OpenWrite opens the regular file at path for writing and empties it, or
// creates it, as the function does. The caller closes the descriptor.
func (v *View) OpenWrite(_ context.Context, path string, links Links) (fd int, err error) {
	how := links.lookup(followLast) | forWriting
	fd, err = v.openForWrite(v.base, path, how, unix.O_TRUNC, 0o666)
	return fd, pathError("open", path, err)
}

// CreateDirectory makes a directory. An existing one is fine with recursive,
// unless it is one that a rule keeps from being written in a directory that
// may be: that is EROFS, as if it were missing. Without recursive an existing
// name is EEXIST where it may be written, else EROFS.
func (v *View) CreateDirectory(_ context.Context, path string, recursive bool, links Links) error {
	_, err := v.makeDirectory(path, recursive, links.lookup(0))
	return pathError("mkdir", path, err)
}

// makeDirectory makes path, with its missing parents when recursive is set.
// It tells whether path itself is new.
func (v *View) makeDirectory(path string, recursive bool, how lookup) (created bool, err error) {
	for range maxRaces {
		created, err = v.mkdir(v.base, path, how)
		if err == unix.ENOENT && recursive {
			if parent, _ := splitPath(path); parent != "/" {
				if _, err := v.makeDirectory(parent, true, how); err != nil {
					return false, err
				}
				created, err = v.mkdir(v.base, path, how)
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

// existing is the answer to making a directory at path, where something is.
// It is ENOENT when that is no longer so.
func (v *View) existing(path string, recursive bool, how lookup) error {
	p, err := v.find(v.base, path, how)
	if err != nil {
		return err
	}
	p.close()
	if !recursive {
		if p.access == Hidden {
			return unix.EROFS
		}
		return cmp.Or(p.writable(), error(unix.EEXIST))
	}
	switch p.fileType() {
	case unix.DT_DIR:
	case unix.DT_LNK:
		if how&refuseLinks != 0 {
			return unix.ENOTDIR
		}
		var st unix.Stat_t
		denied, err := v.target(v.base, path, &st)
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
	case p.access == Denied:
		return unix.EACCES
	case p.access == Read && p.in.access == Write:
		return unix.EROFS
	}
	return nil
}

// Stat describes the file at path. Of what is denied, and of directories that
// only lead to what may be read, it tells no more than the type.
func (v *View) Stat(_ context.Context, path string, links Links) (Metadata, error) {
	m, err := v.stat(path, links)
	return m, pathError("stat", path, err)
}

func (v *View) stat(path string, links Links) (Metadata, error) {
	p, err := v.find(v.base, path, links.lookup(followLast))
	if err != nil {
		return Metadata{}, err
	}
	defer p.close()
	if p.fileType() == unix.DT_LNK {
		if p.access == Denied {
			return Metadata{}, unix.EACCES
		}
		return Metadata{}, linkRefused(path)
	}
	if p.access < Read {
		mode := uint16(p.st.Mode & unix.S_IFMT)
		return metadata(&unix.Statx_t{Mode: mode}, p.linked), nil
	}
	var st unix.Statx_t
	if err := statx(p.fd, "", unix.AT_EMPTY_PATH, &st); err != nil {
		return Metadata{}, err
	}
	return metadata(&st, p.linked), nil
}

// Canonicalize returns path with every symbolic link resolved. The path must
// exist.
func (v *View) Canonicalize(_ context.Context, path string) (string, error) {
	p, err := v.canonicalize(path)
	return p, pathError("canonicalize", path, err)
}

// Watchable tells why path may not be watched.
func (v *View) Watchable(path string) error { return v.rules.Watchable(path) }
