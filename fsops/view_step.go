package fsops

import (
	"golang.org/x/sys/unix"
)

// The steps of walks, copies and removals. Each takes a name in a directory, or a
// path that starts there. On a nil *View each is a plain system call, and openHost.

// maxRaces is how often an operation starts over because a name appeared,
// vanished or changed its type between the look at it and the call.
const maxRaces = 64

// find resolves name, which must exist.
func (v *View) find(d Dir, name string, how Lookup) (Place, error) {
	p, err := v.resolve(d, name, how)
	if err == nil && !p.Exists() {
		p.Close()
		err = unix.ENOENT
	}
	return p, visible(err)
}

// object is find for a caller that uses only the object: the place may lack the directory and the
// name of the object.
func (v *View) object(d Dir, name string, how Lookup) (Place, error) {
	if p, err := v.paths.whole(d, name, unix.O_PATH, FollowLast); err == nil {
		return p, nil
	}
	return v.find(d, name, how)
}

// lstat describes name itself.
func (v *View) lstat(d Dir, name string, st *unix.Stat_t) error {
	if v == nil {
		return fstatAt(d.FD, name, st, unix.AT_SYMLINK_NOFOLLOW)
	}
	p, err := v.find(d, name, 0)
	if err != nil {
		return err
	}
	*st = p.Stat
	p.Close()
	return nil
}

// target describes the object that name leads to. denied reports whether the
// object, or the way to it, is denied, which st does not show.
func (v *View) target(d Dir, name string, st *unix.Stat_t) (denied bool, err error) {
	if v == nil {
		return false, fstatAt(d.FD, name, st, 0)
	}
	p, err := v.object(d, name, FollowLast)
	if err != nil {
		return err == unix.EACCES, err
	}
	*st = p.Stat
	p.Close()
	return p.Access == Denied, nil
}

// shows reports whether name, with the type read from the directory, is listed.
func (v *View) shows(d Dir, name []byte, kind byte) bool {
	if v == nil {
		return true
	}
	path := join(d.Path, string(name))
	if v.paths.rules.Access(path) != Hidden {
		return showsDevice(path)
	}
	if kind == unix.DT_UNKNOWN {
		var st unix.Stat_t
		if fstatAt(d.FD, string(name), &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
			kind = kindOf(&st)
		}
	}
	return kind == unix.DT_DIR && v.paths.rules.Leads(path) && showsDevice(path)
}

// openDir opens a directory to list it. Anything else is ENOTDIR, also a link
// that is not followed.
func (v *View) openDir(d Dir, name string, follow bool) (Dir, error) {
	if v == nil {
		flags := dirFlags
		if !follow {
			flags |= unix.O_NOFOLLOW
		}
		fd, err := openHost(d.FD, name, flags, 0)
		return Dir{FD: fd}, err
	}
	var how Lookup
	if follow {
		how = FollowLast
	}
	return v.lookupDir(d, name, how)
}

// lookupDir is openDir under a policy.
func (v *View) lookupDir(d Dir, name string, how Lookup) (Dir, error) {
	if p, err := v.paths.whole(d, name, dirFlags, FollowLast); err == nil {
		return p.Dir, nil
	}
	p, err := v.find(d, name, how)
	if err != nil {
		return Dir{}, err
	}
	defer p.Close()
	switch {
	case p.Access == Denied:
		return Dir{}, unix.EACCES
	case p.fileType() != unix.DT_DIR:
		return Dir{}, unix.ENOTDIR
	}
	found := p.Dir
	found.FD, err = v.paths.Reopen(&p, dirFlags)
	return found, err
}

// openSource opens a file for reading. A link is ELOOP. Without a policy other
// types are opened too; the caller checks the type.
func (v *View) openSource(d Dir, name string) (int, error) {
	if v == nil {
		return openHost(d.FD, name, unix.O_RDONLY|unix.O_NOFOLLOW, 0)
	}
	return v.openForRead(d, name, 0)
}

// openForRead opens a regular file.
func (v *View) openForRead(d Dir, name string, how Lookup) (int, error) {
	p, err := v.object(d, name, how)
	if err != nil {
		return -1, err
	}
	defer p.Close()
	switch {
	case p.Access == Denied:
		return -1, unix.EACCES
	case p.fileType() == unix.DT_LNK:
		return -1, unix.ELOOP
	case !isRegular(&p.Stat):
		return -1, notRegular(name)
	}
	return v.paths.Reopen(&p, unix.O_RDONLY)
}

// openTarget opens a file for writing without emptying it, or creates it with
// mode. In a fresh directory it must not exist yet.
func (v *View) openTarget(d Dir, name string, fresh bool, mode uint32) (int, error) {
	flags, how := unix.O_WRONLY|unix.O_CREAT, FollowLast|forWriting
	if fresh {
		flags, how = flags|unix.O_EXCL|unix.O_NOFOLLOW, forWriting
	}
	if v == nil {
		return openHost(d.FD, name, flags, mode)
	}
	return v.openForWrite(d, name, how, flags, mode)
}

// openForWrite opens a regular file with flags, or creates it.
func (v *View) openForWrite(d Dir, name string, how Lookup, flags int, mode uint32) (int, error) {
	for range maxRaces {
		p, err := v.resolve(d, name, how)
		if err != nil {
			return -1, visible(err)
		}
		existed := p.Exists()
		fd := -1
		if existed {
			fd, err = v.openExisting(&p, name, flags)
		} else if flags&unix.O_CREAT == 0 {
			err = unix.ENOENT
		} else if err = v.paths.Creatable(&p, false); err == nil {
			err = unix.EISDIR
			if !p.Slash {
				const create = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW
				fd, err = openAt(p.In.FD, p.Name, create, mode)
			}
		}
		p.Close()
		if existed || err != unix.EEXIST {
			return fd, err
		}
	}
	return -1, unix.EBUSY
}

// openExisting opens p for writing with flags, if it is a regular file.
func (v *View) openExisting(p *Place, name string, flags int) (int, error) {
	switch {
	case p.Access == Denied:
		return -1, unix.EACCES
	case p.fileType() == unix.DT_DIR && flags&unix.O_EXCL == 0:
		return -1, unix.EISDIR
	}
	if err := p.Writable(); err != nil {
		return -1, err
	}
	switch {
	case flags&unix.O_EXCL != 0:
		return -1, unix.EEXIST
	case p.fileType() == unix.DT_LNK:
		return -1, unix.ELOOP
	case !isRegular(&p.Stat):
		return -1, notRegular(name)
	}
	return v.paths.Reopen(p, unix.O_WRONLY|flags&unix.O_TRUNC)
}

// makeDir makes the directory name and opens it. An existing directory is
// accepted, also through a link. fresh reports whether the directory is new.
func (v *View) makeDir(d Dir, name string) (made Dir, fresh bool, err error) {
	if v == nil {
		err = mkdirAt(d.FD, name)
		fresh = err == nil
	} else {
		fresh, err = v.mkdir(d, name, 0)
	}
	if !fresh && err != unix.EEXIST {
		return Dir{}, false, err
	}
	made, err = v.openDir(d, name, !fresh)
	if !fresh && (err == unix.ENOTDIR || err == unix.ENOENT) {
		err = unix.EEXIST // a file or a dangling link is there
	}
	return made, fresh, err
}

// mkdir makes a directory under a policy. Any existing name is EEXIST.
func (v *View) mkdir(d Dir, name string, how Lookup) (created bool, err error) {
	p, err := v.resolve(d, name, how|forWriting)
	if err != nil {
		return false, visible(err)
	}
	defer p.Close()
	if p.Exists() {
		return false, unix.EEXIST
	}
	if err := v.paths.Creatable(&p, true); err != nil {
		return false, err
	}
	err = mkdirAt(p.In.FD, p.Name)
	return err == nil, err
}

// readLink reads the symbolic link name.
func (v *View) readLink(d Dir, name string) (string, error) {
	if v == nil {
		return readLinkHost(d.FD, name)
	}
	p, err := v.find(d, name, 0)
	if err != nil {
		return "", err
	}
	defer p.Close()
	if p.Access == Denied {
		return "", unix.EACCES
	}
	return readLinkAt(p.FD, "")
}

// symlink makes name a link to target.
func (v *View) symlink(target string, d Dir, name string) error {
	if v == nil {
		return unix.Symlinkat(target, d.FD, name)
	}
	p, err := v.resolve(d, name, forWriting)
	if err != nil {
		return visible(err)
	}
	defer p.Close()
	if !p.Exists() {
		if err := v.paths.Creatable(&p, false); err != nil {
			return err
		}
		return unix.Symlinkat(target, p.In.FD, p.Name)
	}
	if err := p.Writable(); err != nil {
		return err
	}
	return unix.EEXIST
}

// unlink removes name from d; flags are those of unlinkat(2). The caller has
// checked that no rule is about d or anything below it.
func (v *View) unlink(d Dir, name string, flags int) error {
	if v != nil {
		if err := d.Writable(); err != nil {
			return err
		}
		if flags == 0 && v.paths.rules.DeniesFile(join(d.Path, name)) {
			return unix.EACCES
		}
	}
	return unlinkAt(d.FD, name, flags)
}
