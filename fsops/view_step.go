package fsops

import (
	"golang.org/x/sys/unix"
)

// The steps of walks, copies and removals. Each takes a name in a directory, or a
// path that starts there. On a nil *View each is a plain system call.

// maxRaces is how often an operation starts over because a name appeared,
// vanished or changed its type between the look at it and the call.
const maxRaces = 64

// find resolves name, which must lead to something.
func (v *View) find(d dir, name string, how lookup) (place, error) {
	p, err := v.resolve(d, name, how)
	if err == nil && !p.exists() {
		p.close()
		err = unix.ENOENT
	}
	return p, visible(err)
}

// lstat describes name itself.
func (v *View) lstat(d dir, name string, st *unix.Stat_t) error {
	if v == nil {
		return fstatAt(d.fd, name, st, unix.AT_SYMLINK_NOFOLLOW)
	}
	p, err := v.find(d, name, 0)
	if err != nil {
		return err
	}
	*st = p.st
	p.close()
	return nil
}

// target describes what name leads to. denied tells whether the object, or the way
// to it, is denied, which the caller cannot see from st.
func (v *View) target(d dir, name string, st *unix.Stat_t) (denied bool, err error) {
	if v == nil {
		return false, fstatAt(d.fd, name, st, 0)
	}
	p, err := v.find(d, name, followLast)
	if err != nil {
		return err == unix.EACCES, err
	}
	*st = p.st
	p.close()
	return p.access == Denied, nil
}

// shows tells whether name, of the type that was read with it, is listed.
func (v *View) shows(d dir, name []byte, kind byte) bool {
	if v == nil {
		return true
	}
	path := join(d.path, string(name))
	if v.rules.Access(path) != Hidden {
		return showsDevice(path)
	}
	if kind == unix.DT_UNKNOWN {
		var st unix.Stat_t
		if fstatAt(d.fd, string(name), &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
			kind = kindOf(&st)
		}
	}
	return kind == unix.DT_DIR && v.rules.Leads(path) && showsDevice(path)
}

// openDir opens a directory to list it. Anything else is ENOTDIR, also a link
// that is not followed.
func (v *View) openDir(d dir, name string, follow bool) (dir, error) {
	if v == nil {
		flags := dirFlags
		if !follow {
			flags |= unix.O_NOFOLLOW
		}
		fd, err := openAt(d.fd, name, flags, 0)
		return dir{fd: fd}, err
	}
	var how lookup
	if follow {
		how = followLast
	}
	return v.lookupDir(d, name, how)
}

// lookupDir is openDir under a policy.
func (v *View) lookupDir(d dir, name string, how lookup) (dir, error) {
	p, err := v.find(d, name, how)
	if err != nil {
		return dir{}, err
	}
	defer p.close()
	switch {
	case p.access == Denied:
		return dir{}, unix.EACCES
	case p.fileType() != unix.DT_DIR:
		return dir{}, unix.ENOTDIR
	}
	found := p.dir
	found.fd, err = v.reopen(&p, dirFlags)
	return found, err
}

// openSource opens a file for reading. A link is ELOOP. Without a policy other
// types are opened too; the caller checks the type.
func (v *View) openSource(d dir, name string) (int, error) {
	if v == nil {
		return openAt(d.fd, name, unix.O_RDONLY|unix.O_NOFOLLOW, 0)
	}
	return v.openForRead(d, name, 0)
}

// openForRead opens a regular file.
func (v *View) openForRead(d dir, name string, how lookup) (int, error) {
	p, err := v.find(d, name, how)
	if err != nil {
		return -1, err
	}
	defer p.close()
	switch {
	case p.access == Denied:
		return -1, unix.EACCES
	case p.fileType() == unix.DT_LNK:
		return -1, unix.ELOOP
	case !isRegular(&p.st):
		return -1, notRegular(name)
	}
	return v.reopen(&p, unix.O_RDONLY)
}

// openTarget opens a file for writing without emptying it, or creates it with
// mode. In a fresh directory it must not exist yet.
func (v *View) openTarget(d dir, name string, fresh bool, mode uint32) (int, error) {
	flags, how := unix.O_WRONLY|unix.O_CREAT, followLast|forWriting
	if fresh {
		flags, how = flags|unix.O_EXCL|unix.O_NOFOLLOW, forWriting
	}
	if v == nil {
		return openAt(d.fd, name, flags, mode)
	}
	return v.openForWrite(d, name, how, flags, mode)
}

// openForWrite opens a regular file with flags, or creates it.
func (v *View) openForWrite(d dir, name string, how lookup, flags int, mode uint32) (int, error) {
	for range maxRaces {
		p, err := v.resolve(d, name, how)
		if err != nil {
			return -1, visible(err)
		}
		existed := p.exists()
		fd := -1
		if existed {
			fd, err = v.openExisting(&p, name, flags)
		} else if err = v.creatable(&p, false); err == nil {
			err = unix.EISDIR
			if !p.slash {
				const create = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW
				fd, err = openAt(p.in.fd, p.name, create, mode)
			}
		}
		p.close()
		if existed || err != unix.EEXIST {
			return fd, err
		}
	}
	return -1, unix.EBUSY
}

// openExisting opens p for writing with flags, if it is a regular file.
func (v *View) openExisting(p *place, name string, flags int) (int, error) {
	switch {
	case p.access == Denied:
		return -1, unix.EACCES
	case p.fileType() == unix.DT_DIR:
		return -1, unix.EISDIR
	}
	if err := p.writable(); err != nil {
		return -1, err
	}
	switch {
	case flags&unix.O_EXCL != 0:
		return -1, unix.EEXIST
	case p.fileType() == unix.DT_LNK:
		return -1, unix.ELOOP
	case !isRegular(&p.st):
		return -1, notRegular(name)
	}
	return v.reopen(p, unix.O_WRONLY|flags&unix.O_TRUNC)
}

// makeDir makes the directory name and opens it. An existing directory will do,
// also through a link. It tells whether the directory is new.
func (v *View) makeDir(d dir, name string) (made dir, fresh bool, err error) {
	if v == nil {
		err = mkdirAt(d.fd, name)
		fresh = err == nil
	} else {
		fresh, err = v.mkdir(d, name, 0)
	}
	if !fresh && err != unix.EEXIST {
		return dir{}, false, err
	}
	made, err = v.openDir(d, name, !fresh)
	if !fresh && (err == unix.ENOTDIR || err == unix.ENOENT) {
		err = unix.EEXIST // a file or a dangling link is there
	}
	return made, fresh, err
}

// mkdir makes a directory under a policy. Any existing name is EEXIST.
func (v *View) mkdir(d dir, name string, how lookup) (created bool, err error) {
	p, err := v.resolve(d, name, how|forWriting)
	if err != nil {
		return false, visible(err)
	}
	defer p.close()
	if p.exists() {
		return false, unix.EEXIST
	}
	if err := v.creatable(&p, true); err != nil {
		return false, err
	}
	err = mkdirAt(p.in.fd, p.name)
	return err == nil, err
}

// readLink reads the symbolic link name.
func (v *View) readLink(d dir, name string) (string, error) {
	if v == nil {
		return readLinkAt(d.fd, name)
	}
	p, err := v.find(d, name, 0)
	if err != nil {
		return "", err
	}
	defer p.close()
	if p.access == Denied {
		return "", unix.EACCES
	}
	return readLinkAt(p.fd, "")
}

// symlink makes name a link to target.
func (v *View) symlink(target string, d dir, name string) error {
	if v == nil {
		return unix.Symlinkat(target, d.fd, name)
	}
	p, err := v.resolve(d, name, forWriting)
	if err != nil {
		return visible(err)
	}
	defer p.close()
	if !p.exists() {
		if err := v.creatable(&p, false); err != nil {
			return err
		}
		return unix.Symlinkat(target, p.in.fd, p.name)
	}
	if err := p.writable(); err != nil {
		return err
	}
	return unix.EEXIST
}

// unlink removes name from d; flags are those of unlinkat(2). The caller has made
// sure that no rule is about d or anything below it.
func (v *View) unlink(d dir, name string, flags int) error {
	if v != nil {
		if err := d.writable(); err != nil {
			return err
		}
		if flags == 0 && v.rules.DeniesFile(join(d.path, name)) {
			return unix.EACCES
		}
	}
	return unlinkAt(d.fd, name, flags)
}
