package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// placeholderTime is the modification time of every placeholder, in seconds:
// even and after 1980, so that any file system can keep it.
const placeholderTime = 556_689_264

var (
	// errNotOurs says of an object that it is no placeholder.
	errNotOurs = errors.New("not a placeholder")
	// errChanged says that others did something at the name meanwhile.
	errChanged = errors.New("changed by others")
	// errLocked says that somebody has the exclusive lock, so that nobody has a
	// share: he is removing it, or is a process that keeps it from us.
	errLocked = errors.New("locked by others")
)

// isPlaceholder tells whether an object is one of ours and was not changed
// since. Resolve takes a name at which there is one for missing: it goes when
// its users do.
func isPlaceholder(st *unix.Stat_t) bool {
	if st.Mtim.Sec != placeholderTime || st.Mode&0o222 != 0 {
		return false
	}
	kind := st.Mode & unix.S_IFMT
	return kind == unix.S_IFDIR || kind == unix.S_IFREG && st.Size == 0
}

// away is where a placeholder is removed.
func (r record) away() string { return r.temp + "-" }

// join takes a share in the placeholder at the name. The error is ENOENT when
// there is nothing, errNotOurs when there is something else.
func (r record) join(parent int) (fd int, err error) {
	var st unix.Stat_t
	if err := unix.Fstatat(parent, r.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return -1, err
	}
	if !isPlaceholder(&st) {
		return -1, errNotOurs
	}
	fd, err = unix.Openat(parent, r.name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == unix.ELOOP {
		return -1, errChanged
	}
	if err != nil {
		return -1, err
	}
	if err := r.share(parent, fd); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// share locks the object fd and makes sure that it is still what is at the
// name.
func (r record) share(parent, fd int) error {
	switch err := unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB); err {
	case nil:
	case unix.EWOULDBLOCK:
		return errLocked
	default:
		return os.NewSyscallError("flock", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if !isPlaceholder(&st) {
		return errNotOurs
	}
	if !sameObject(parent, r.name, &st) {
		return errChanged
	}
	return nil
}

// replace removes a placeholder that somebody keeps locked. Only one agent at a
// time does that, as it must not take the next one's new object for this one:
// the lock on the directory of the journals is for that.
func (r record) replace(parent int, journals string) error {
	dir, err := os.Open(journals)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return &os.PathError{Op: "flock", Path: journals, Err: err}
	}
	fd, err := r.join(parent)
	if err == nil {
		return unix.Close(fd) // it is free now, to be joined again
	}
	var st unix.Stat_t
	if err == errLocked && unix.Fstatat(parent, r.name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && isPlaceholder(&st) {
		r.discard(parent, &st)
	}
	return nil
}

// make makes the placeholder. Only when it is complete does it get its name,
// if nothing else has it: EEXIST.
func (r record) make(parent int, at func(step string)) (fd int, err error) {
	mode, flags := uint32(0o444), unix.O_CREAT|unix.O_EXCL
	if r.dir {
		mode, flags = 0o555, unix.O_DIRECTORY
		if err := unix.Mkdirat(parent, r.temp, mode); err != nil {
			return -1, err
		}
	}
	fd, err = unix.Openat(parent, r.temp, flags|unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		r.unmake(parent)
		return -1, err
	}
	at("made")
	err = mark(fd, mode)
	if err == nil {
		at("marked")
		err = unix.Renameat2(parent, r.temp, parent, r.name, unix.RENAME_NOREPLACE)
	}
	if err != nil {
		_ = unix.Close(fd)
		r.unmake(parent)
		return -1, err
	}
	at("placed")
	return fd, nil
}

// mark makes an empty object a placeholder and takes a share in it.
func mark(fd int, mode uint32) error {
	times := [2]unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: placeholderTime}}
	// futimens(3): golang.org/x/sys has no call for a descriptor alone.
	if _, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&times)), 0, 0, 0); errno != 0 {
		return os.NewSyscallError("utimensat", errno)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if st.Mode&0o777 != mode { // the umask
		if err := unix.Fchmod(fd, mode); err != nil {
			return os.NewSyscallError("fchmod", err)
		}
		if err := unix.Fstat(fd, &st); err != nil {
			return os.NewSyscallError("fstat", err)
		}
	}
	if !isPlaceholder(&st) {
		return errors.New("the file system does not keep modes and times")
	}
	switch err := unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB); err {
	case nil:
		return nil
	case unix.EWOULDBLOCK:
		return errLocked
	default:
		return os.NewSyscallError("flock", err)
	}
}

// unmake removes what make has begun. The name is one that only we have made.
func (r record) unmake(parent int) {
	var st unix.Stat_t
	if unix.Fstatat(parent, r.temp, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return
	}
	kind := st.Mode & unix.S_IFMT
	if kind == unix.S_IFDIR || kind == unix.S_IFREG && st.Size == 0 {
		_ = unlinkEmpty(parent, r.temp, &st) // else somebody has put something into it
	}
}

// retire gives up the share that fd has and removes the placeholder, wherever
// it was moved. It is false if somebody else still needs it.
func (r record) retire(parent *parentDir, fd int, at func(step string)) bool {
	if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || !isPlaceholder(&st) || st.Nlink == 0 {
		return true // somebody uses it for something else, or removed it
	}
	if parent.open(r.parent) != nil || !sameObject(parent.fd, r.name, &st) {
		// Its name, or that of a directory above it, was changed.
		path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		if err != nil || !filepath.IsAbs(path) {
			return true
		}
		r.parent, r.name = filepath.Dir(path), filepath.Base(path)
		if parent.open(r.parent) != nil {
			return true
		}
	}
	at("locked")
	return r.moveAway(parent.fd, &st)
}

// settle removes what is left of a placeholder after a crash, or after somebody
// else needed it. It is false if somebody still does.
func (r record) settle() bool {
	parent := parentDir{fd: -1}
	defer parent.close()
	switch err := parent.open(r.parent); {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return true
	case err != nil:
		return false
	}
	r.unmake(parent.fd)
	var st unix.Stat_t
	if unix.Fstatat(parent.fd, r.away(), &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
		r.finish(parent.fd, &st)
	}
	if err := unix.Fstatat(parent.fd, r.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || !isPlaceholder(&st) {
		return true
	}
	fd, err := unix.Openat(parent.fd, r.name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err == unix.ENOENT || err == unix.ELOOP
	}
	defer unix.Close(fd)
	if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false
	}
	if unix.Fstat(fd, &st) != nil || !isPlaceholder(&st) {
		return true
	}
	return r.discard(parent.fd, &st)
}

// discard removes the object at the name if it is st. As nothing removes an
// object by what it is, it gets a name first that nobody else knows.
func (r record) discard(parent int, st *unix.Stat_t) bool {
	return !sameObject(parent, r.name, st) || r.moveAway(parent, st)
}

// moveAway is discard for an object that was just seen at the name.
func (r record) moveAway(parent int, st *unix.Stat_t) bool {
	if err := unix.Renameat2(parent, r.name, parent, r.away(), unix.RENAME_NOREPLACE); err != nil {
		return err == unix.ENOENT
	}
	return r.finish(parent, st)
}

// finish removes what was moved away if it is st and a placeholder, else it
// puts it back. It is false if there is still something to be done.
func (r record) finish(parent int, st *unix.Stat_t) bool {
	var now unix.Stat_t
	if err := unix.Fstatat(parent, r.away(), &now, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err == unix.ENOENT
	}
	ours := now.Dev == st.Dev && now.Ino == st.Ino && isPlaceholder(&now)
	if ours {
		switch unlinkEmpty(parent, r.away(), &now) {
		case nil, unix.ENOENT:
			return true
		case unix.ENOTEMPTY:
			ours = false // somebody puts something into it just now
		}
	}
	err := unix.Renameat2(parent, r.away(), parent, r.name, unix.RENAME_NOREPLACE)
	return !ours && (err == nil || err == unix.ENOENT)
}

// unlinkEmpty removes the name of a directory, if that is empty, or a file.
func unlinkEmpty(parent int, name string, st *unix.Stat_t) error {
	flags := 0
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		flags = unix.AT_REMOVEDIR
	}
	return unix.Unlinkat(parent, name, flags)
}

// sameObject tells whether st is what is at name.
func sameObject(parent int, name string, st *unix.Stat_t) bool {
	var now unix.Stat_t
	err := unix.Fstatat(parent, name, &now, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && now.Dev == st.Dev && now.Ino == st.Ino
}

// cannotCreate tells whether err means that no process with the rights of this
// one can create anything in parent. The owner of a directory could give
// himself the right.
func cannotCreate(parent int, err error) bool {
	switch err {
	case unix.EROFS:
		return true
	case unix.EACCES, unix.EPERM:
		var st unix.Stat_t
		return unix.Fstat(parent, &st) == nil && int(st.Uid) != os.Geteuid()
	}
	return false
}

// parentDir is an open directory. Neighbouring names mostly have the same one.
type parentDir struct {
	fd   int // O_PATH; -1: none
	path string
}

// open opens path, in which no component may be a symlink.
func (d *parentDir) open(path string) error {
	if d.fd >= 0 && d.path == path {
		return nil
	}
	d.close()
	if !filepath.IsAbs(path) || strings.Contains(path, "\x00") {
		return fmt.Errorf("%q is not an absolute path", path)
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	d.fd, d.path = fd, path
	return nil
}

func (d *parentDir) close() {
	if d.fd >= 0 {
		_ = unix.Close(d.fd)
	}
	d.fd = -1
}
