package supervise

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
)

// Calls that reveal something about a path without opening it. Their results are
// written into the caller's memory. For a denied object they show only its type,
// device and inode number. For a directory that only leads to readable objects,
// they show that it can be passed.

// statOf returns the metadata of p for the caller.
func statOf(p *fsops.Place) unix.Stat_t {
	if p.Access >= fsops.Read {
		return p.Stat
	}
	return unix.Stat_t{Dev: p.Stat.Dev, Ino: p.Stat.Ino, Nlink: 1, Mode: maskedMode(p), Blksize: p.Stat.Blksize}
}

// maskedMode is the mode of an object that is denied or only leads to others.
func maskedMode(p *fsops.Place) uint32 {
	mode := p.Stat.Mode & unix.S_IFMT
	if p.Access == fsops.Hidden {
		mode |= 0o755
	}
	return mode
}

func (r *request) stat() callResult { return r.storeStat(unix.AT_FDCWD, 0, 1, 0) }
func (r *request) lstat() callResult {
	return r.storeStat(unix.AT_FDCWD, 0, 1, unix.AT_SYMLINK_NOFOLLOW)
}
func (r *request) newfstatat() callResult {
	flags := r.int(3)
	if flags&^(unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH|unix.AT_NO_AUTOMOUNT) != 0 {
		return fail(unix.EINVAL)
	}
	return r.storeStat(r.int(0), 1, 2, flags)
}

func (r *request) storeStat(dir, pathArg, bufArg, flags int) callResult {
	p, err := r.at(dir, pathArg, flags)
	if err != nil {
		return fail(err)
	}
	st := statOf(&p.Place)
	p.close()
	return result(r.store(r.pointer(bufArg), unsafe.Slice((*byte)(unsafe.Pointer(&st)), unsafe.Sizeof(st))))
}

func (r *request) statx() callResult {
	flags, mask := r.int(2), r.int(3)
	const (
		sync  = unix.AT_STATX_FORCE_SYNC | unix.AT_STATX_DONT_SYNC
		known = unix.AT_SYMLINK_NOFOLLOW | unix.AT_EMPTY_PATH | unix.AT_NO_AUTOMOUNT | sync
	)
	if flags&^known != 0 || mask&unix.STATX__RESERVED != 0 {
		return fail(unix.EINVAL)
	}
	p, err := r.at(r.int(0), 1, flags)
	if err != nil {
		return fail(err)
	}
	defer p.close()
	var st unix.Statx_t
	if err := unix.Statx(p.FD, "", unix.AT_EMPTY_PATH|flags&sync, mask, &st); err != nil {
		return fail(err)
	}
	if p.Access < fsops.Read {
		st = unix.Statx_t{
			Mask: st.Mask & unix.STATX_BASIC_STATS, Blksize: st.Blksize, Nlink: 1, Mode: uint16(maskedMode(&p.Place)), Ino: st.Ino,
			Dev_major: st.Dev_major, Dev_minor: st.Dev_minor,
		}
	}
	return result(r.store(r.pointer(4), unsafe.Slice((*byte)(unsafe.Pointer(&st)), unsafe.Sizeof(st))))
}

func (r *request) readlink() callResult   { return r.storeLink(unix.AT_FDCWD, 0, 1) }
func (r *request) readlinkat() callResult { return r.storeLink(r.int(0), 1, 2) }

func (r *request) storeLink(dir, pathArg, bufArg int) callResult {
	size := r.int(bufArg + 1)
	if size <= 0 {
		return fail(unix.EINVAL)
	}
	p, err := r.target(dir, pathArg, true, false)
	if err != nil {
		return fail(err)
	}
	defer p.close()
	switch {
	case p.Access == fsops.Denied:
		return fail(unix.EACCES)
	case p.Stat.Mode&unix.S_IFMT == unix.S_IFLNK:
	case p.empty:
		return fail(unix.ENOENT)
	default:
		return fail(unix.EINVAL)
	}
	text, err := r.linkText(p.Place)
	if err != nil {
		return fail(err)
	}
	text = text[:min(len(text), size)]
	if err := r.store(r.pointer(bufArg), []byte(text)); err != nil {
		return fail(err)
	}
	return callResult{value: int64(len(text))}
}

func (r *request) access() callResult    { return r.mayAccess(unix.AT_FDCWD, 0, 1, 0) }
func (r *request) faccessat() callResult { return r.mayAccess(r.int(0), 1, 2, 0) }
func (r *request) faccessat2() callResult {
	flags := r.int(3)
	if flags&^(unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH|unix.AT_EACCESS) != 0 {
		return fail(unix.EINVAL)
	}
	return r.mayAccess(r.int(0), 1, 2, flags)
}

// mayAccess checks what the caller may do with a file. For a read-only object,
// W_OK fails with EROFS, as on a read-only mount, but only if the object's mode
// would allow it.
func (r *request) mayAccess(dir, pathArg, modeArg, flags int) callResult {
	const rOK, wOK, xOK = 4, 2, 1
	mode := r.int(modeArg)
	if mode&^(rOK|wOK|xOK) != 0 {
		return fail(unix.EINVAL)
	}
	p, err := r.at(dir, pathArg, flags)
	if err != nil {
		return fail(err)
	}
	defer p.close()
	switch {
	case p.Access == fsops.Denied && mode != 0:
		return fail(unix.EACCES)
	case p.Access < fsops.Read && mode&wOK != 0:
		return fail(unix.EROFS)
	case p.Access < fsops.Read:
		return callResult{}
	}
	if err := faccessat2(ownPath(p.FD), mode, flags&unix.AT_EACCESS); err != nil {
		return fail(err)
	}
	if kind := p.Stat.Mode & unix.S_IFMT; mode&wOK != 0 && (kind == unix.S_IFREG || kind == unix.S_IFDIR || kind == unix.S_IFLNK) {
		return result(p.Writable())
	}
	return callResult{}
}

// The calls below are judged, and then the kernel makes them: a command that
// changes the path in between learns metadata of denied objects, but no content.

func (r *request) chdir() callResult {
	return r.look(true, func(p *fsops.Place) error {
		if p.Access == fsops.Denied {
			return unix.EACCES
		}
		return nil
	})
}

func (r *request) statfs() callResult     { return r.look(true, toldAbout) }
func (r *request) getxattr() callResult   { return r.look(true, toldAbout) }
func (r *request) lgetxattr() callResult  { return r.look(false, toldAbout) }
func (r *request) listxattr() callResult  { return r.look(true, toldAbout) }
func (r *request) llistxattr() callResult { return r.look(false, toldAbout) }

// toldAbout refuses objects that the command may not know about.
func toldAbout(p *fsops.Place) error { return p.Access.Readable() }

// look judges the object of the first argument, and lets the kernel make the call.
func (r *request) look(follow bool, judge func(*fsops.Place) error) callResult {
	return r.lookAt(0, follow, judge)
}

func (r *request) lookAt(pathArg int, follow bool, judge func(*fsops.Place) error) callResult {
	p, err := r.target(unix.AT_FDCWD, pathArg, false, follow)
	if err != nil {
		return fail(err)
	}
	err = judge(&p.Place)
	p.close()
	if err != nil {
		return fail(err)
	}
	return proceed()
}

// inotifyAddWatch judges inotify_add_watch(2).
func (r *request) inotifyAddWatch() callResult {
	follow := uint32(r.int(2))&unix.IN_DONT_FOLLOW == 0
	return r.lookAt(1, follow, toldAbout)
}

// faccessat2 is faccessat2(2), which package unix imitates if there are flags.
func faccessat2(path string, mode, flags int) error {
	p, err := unix.BytePtrFromString(path)
	if err != nil {
		return err
	}
	dir := unix.AT_FDCWD
	_, _, errno := unix.Syscall6(unix.SYS_FACCESSAT2, uintptr(dir), uintptr(unsafe.Pointer(p)), uintptr(mode), uintptr(flags), 0, 0)
	return errOrNil(errno)
}

// utimensat is utimensat(2); without times it takes the current one.
func utimensat(path string, times []unix.Timespec) error {
	if times == nil {
		times = []unix.Timespec{{Nsec: timeNow}, {Nsec: timeNow}}
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, path, times, 0)
}
