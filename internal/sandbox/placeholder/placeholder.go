package placeholder

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// placeholderTime is the modification time of every placeholder, in seconds:
// even and after 1980, so that any file system can keep it.
const placeholderTime = 556_689_264

var (
	// errNotOurs says of an object that it is no placeholder.
	errNotOurs = errors.New("not a placeholder")
	// errChanged says that others changed the name in the meantime: try again.
	errChanged = errors.New("changed by others")
	// errLocked says that a process has the exclusive lock on the placeholder:
	// an agent that removes it, or a process that wants to block us.
	errLocked = errors.New("locked by others")
)

// IsPlaceholder reports whether the object that st describes is an unchanged
// placeholder of any agent. Package resolve treats its name as missing, because
// the placeholder is removed when the last agent releases it.
func IsPlaceholder(st *unix.Stat_t) bool {
	if st.Mtim.Sec != placeholderTime || st.Mode&0o222 != 0 {
		return false
	}
	kind := st.Mode & unix.S_IFMT
	return kind == unix.S_IFDIR || kind == unix.S_IFREG && st.Size == 0
}

// join takes a share in the placeholder at the name: a shared lock, which fd
// keeps until it is closed. The error is ENOENT when there is nothing, errNotOurs
// when there is something else.
func (n *note) join(parent int) (fd int, err error) {
	var st unix.Stat_t
	if err := unix.Fstatat(parent, n.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return -1, err
	}
	if !IsPlaceholder(&st) {
		return -1, errNotOurs
	}
	fd, err = unix.Openat(parent, n.name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch err {
	case nil:
	case unix.ELOOP:
		return -1, errChanged
	case unix.EACCES: // somebody has taken away the right to read, which every placeholder grants
		return -1, errNotOurs
	default:
		return -1, err
	}
	err = n.share(parent, fd)
	if err == nil {
		err = n.put()
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// share takes a shared lock on the object fd, makes sure that the name still
// leads to it, and notes which object it is.
func (n *note) share(parent, fd int) error {
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
	if !IsPlaceholder(&st) {
		return errNotOurs
	}
	if !sameObject(parent, n.name, &st) {
		return errChanged
	}
	n.object = identityOf(&st)
	return nil
}

// replace removes a placeholder that some process keeps locked, so that the
// caller can make a new one. If two agents did so at once, the slower one would
// remove what the faster one has just made; so an agent locks the directory of
// the ledgers first. The error is errNotOurs if this user cannot remove it,
// because it belongs to another user in a directory such as /tmp.
func (n *note) replace(parent int, ledgers string) error {
	dir, err := os.Open(ledgers)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return &os.PathError{Op: "flock", Path: ledgers, Err: err}
	}
	fd, err := n.join(parent)
	if err == nil {
		return unix.Close(fd) // it is no longer locked: the caller joins it
	}
	var st unix.Stat_t
	if err == errLocked && unix.Fstatat(parent, n.name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && IsPlaceholder(&st) {
		if n.remove(parent, &st); sameObject(parent, n.name, &st) {
			return errNotOurs
		}
	}
	return nil
}

// make makes the placeholder under a temporary name, and renames it when it is
// complete and the ledger knows it. The error is EEXIST if another object has the
// name by then.
func (n *note) make(parent int, dir bool) (fd int, err error) {
	n.temp, n.object = tempName(), objectID{}
	if err := n.put(); err != nil {
		return -1, err
	}
	n.ledger.at("recorded")
	mode, flags := uint32(0o444), unix.O_CREAT|unix.O_EXCL
	if dir {
		mode, flags = 0o555, unix.O_DIRECTORY
		if err := unix.Mkdirat(parent, n.temp, mode); err != nil {
			return -1, err
		}
	}
	fd, err = unix.Openat(parent, n.temp, flags|unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		n.unmake(parent)
		return -1, err
	}
	n.ledger.at("made")
	st, err := mark(fd, mode)
	if err == nil {
		n.ledger.at("marked")
		n.object = identityOf(&st)
		err = n.put()
	}
	if err == nil {
		n.ledger.at("known")
		err = unix.Renameat2(parent, n.temp, parent, n.name, unix.RENAME_NOREPLACE)
	}
	if err != nil {
		_ = unix.Close(fd)
		n.unmake(parent)
		return -1, err
	}
	n.ledger.at("placed")
	return fd, nil
}

// mark makes an empty object a placeholder and takes a share in it.
func mark(fd int, mode uint32) (st unix.Stat_t, err error) {
	times := [2]unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: placeholderTime}}
	// futimens(3): golang.org/x/sys has no call for a descriptor alone.
	if _, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&times)), 0, 0, 0); errno != 0 {
		return st, os.NewSyscallError("utimensat", errno)
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return st, os.NewSyscallError("fstat", err)
	}
	if st.Mode&0o777 != mode { // the umask took bits away
		if err := unix.Fchmod(fd, mode); err != nil {
			return st, os.NewSyscallError("fchmod", err)
		}
		if err := unix.Fstat(fd, &st); err != nil {
			return st, os.NewSyscallError("fstat", err)
		}
	}
	if !IsPlaceholder(&st) {
		return st, errors.New("the file system does not keep modes and times")
	}
	switch err := unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB); err {
	case nil:
		return st, nil
	case unix.EWOULDBLOCK:
		return st, errLocked
	default:
		return st, os.NewSyscallError("flock", err)
	}
}

// unmake removes the object at the temporary name, unless it has content or is
// not the object in the ledger. It moves nothing, so an object of others keeps
// its name.
func (r record) unmake(parent int) {
	var st unix.Stat_t
	if unix.Fstatat(parent, r.temp, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return
	}
	if r.object != (objectID{}) && r.object != identityOf(&st) {
		return
	}
	switch kind := st.Mode & unix.S_IFMT; {
	case kind == unix.S_IFDIR:
		_ = unix.Unlinkat(parent, r.temp, unix.AT_REMOVEDIR)
	case kind == unix.S_IFREG && st.Size == 0:
		_ = unix.Unlinkat(parent, r.temp, 0)
	}
}

// retire gives up the share that fd has and removes the placeholder, wherever
// that was moved. It is false if there is still something to be done, mostly
// because another process has a lock: then the note has to be settled later.
func (n *note) retire(parent *parentDir, fd int) bool {
	if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || !IsPlaceholder(&st) || st.Nlink == 0 {
		return true // others use it for something else, or removed it
	}
	if parent.open(n.parent) != nil || !sameObject(parent.fd, n.name, &st) {
		// Its name, or that of a directory above it, was changed.
		path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		if err != nil || !filepath.IsAbs(path) {
			return true
		}
		n.parent, n.name = filepath.Dir(path), filepath.Base(path)
		if parent.open(n.parent) != nil {
			return true
		}
		n.in = parent.id
	}
	n.ledger.at("locked")
	return n.remove(parent.fd, &st)
}

// settle removes what a crash left of a placeholder, or what retire had to leave
// to other agents: that object and no other. It is false if there is still
// something to be done, mostly because another process has a lock.
func (n *note) settle() bool {
	parent := parentDir{fd: -1}
	defer parent.close()
	switch err := parent.open(n.parent); {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return true
	case err != nil:
		return false
	}
	if parent.id != n.in {
		return true // another directory has the parent's name now
	}
	n.unmake(parent.fd)
	var st unix.Stat_t
	ours := func() bool { return identityOf(&st) == n.object && IsPlaceholder(&st) }
	if unix.Fstatat(parent.fd, n.name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || !ours() {
		return true
	}
	fd, err := unix.Openat(parent.fd, n.name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err == unix.ENOENT || err == unix.ELOOP
	}
	defer unix.Close(fd)
	if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false
	}
	if unix.Fstat(fd, &st) != nil || !ours() {
		return true
	}
	return n.remove(parent.fd, &st)
}

// remove removes the placeholder st, if the name leads to it. It is false if
// there is still something to be done. That of another user, whom alone a
// directory such as /tmp lets remove it, is left to the agents of that user.
//
// The kernel removes by name only, and between two calls of ours the name may
// come to lead to another object. For a directory that does no harm: the kernel
// removes only empty ones, so at worst an empty new directory of others is
// removed. A file could have any content, so remove first moves the object away
// and checks it there.
func (n *note) remove(parent int, st *unix.Stat_t) bool {
	if !sameObject(parent, n.name, st) {
		return true
	}
	n.ledger.at("seen")
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return n.moveAway(parent, st)
	}
	switch unix.Unlinkat(parent, n.name, unix.AT_REMOVEDIR) {
	case nil, unix.ENOENT, unix.ENOTDIR, unix.ENOTEMPTY, unix.EEXIST:
		return true
	case unix.EPERM:
		return int(st.Uid) != os.Geteuid()
	}
	return false
}

// moveAway gives the object at the name, which was just the file st, a new
// unguessable name, and removes it there if it is still st.
func (n *note) moveAway(parent int, st *unix.Stat_t) bool {
	n.object = identityOf(st)
	err := error(unix.EEXIST)
	for tries := 0; err == unix.EEXIST && tries < maxPlaceTries; tries++ {
		n.temp = tempName()
		if n.put() != nil {
			return false
		}
		err = unix.Renameat2(parent, n.name, parent, n.temp, unix.RENAME_NOREPLACE)
	}
	if err != nil {
		return err == unix.ENOENT || err == unix.EPERM && int(st.Uid) != os.Geteuid()
	}
	fd, err := unix.Openat(parent, n.temp, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err == unix.ENOENT
	}
	defer unix.Close(fd)
	n.ledger.at("away")
	var now unix.Stat_t
	if unix.Fstat(fd, &now) != nil {
		return false
	}
	if identityOf(&now) == n.object && IsPlaceholder(&now) {
		err := unix.Unlinkat(parent, n.temp, 0)
		return err == nil || err == unix.ENOENT
	}
	// Not our placeholder, but a new file of others: put it back. If a third
	// object sits at the temporary name by now, the rename gave that one the
	// protected name: move it away again. The open descriptor keeps the file's
	// inode number from being given to another.
	err = unix.Renameat2(parent, n.temp, parent, n.name, unix.RENAME_NOREPLACE)
	if err == nil && !sameObject(parent, n.name, &now) {
		_ = unix.Renameat2(parent, n.name, parent, tempName(), unix.RENAME_NOREPLACE)
	}
	return true
}

// tempName returns a temporary name that nobody can guess.
func tempName() string { return tempPrefix + rand.Text() }

// objectID identifies an object of a file system. The zero value: not known.
type objectID struct{ dev, ino uint64 }

func identityOf(st *unix.Stat_t) objectID { return objectID{dev: st.Dev, ino: st.Ino} }

// sameObject reports whether the object that st describes is at name in parent.
func sameObject(parent int, name string, st *unix.Stat_t) bool {
	var now unix.Stat_t
	err := unix.Fstatat(parent, name, &now, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && now.Dev == st.Dev && now.Ino == st.Ino
}

// cannotCreate reports whether err means that no process with the rights of
// this one can create anything in parent. A missing permission does not mean
// that if our user owns the directory: the owner can give it to himself.
func cannotCreate(parent int, err error) bool {
	return err == unix.EROFS || (err == unix.EACCES || err == unix.EPERM) && !Owns(parent)
}

// Owns reports whether this user owns a directory, or may own it.
//
// In a user namespace, all owners without a number there have the number of the
// user nobody. If this user is nobody, O_NOATIME tells the difference: only the
// owner of a directory may open it so. In a directory that cannot be read at all,
// the difference stays unknown.
func Owns(dir int) bool {
	var st unix.Stat_t
	if unix.Fstat(dir, &st) == nil && int(st.Uid) != os.Geteuid() {
		return false
	}
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOATIME|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err != unix.EPERM
}

// parentDir is an open directory that is kept from one name to the next,
// because names that are held together are usually in the same one.
type parentDir struct {
	fd   int // O_PATH; -1: none is open
	path string
	id   objectID
}

// open opens path, unless that is open already, and closes what was. No component
// of path may be a symlink.
func (d *parentDir) open(path string) error {
	if d.fd >= 0 && d.path == path {
		return nil
	}
	d.close()
	if !plainPath(path) {
		return fmt.Errorf("%q is not a clean absolute path", path)
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return &os.PathError{Op: "fstat", Path: path, Err: err}
	}
	d.fd, d.path, d.id = fd, path, identityOf(&st)
	return nil
}

func (d *parentDir) close() {
	if d.fd >= 0 {
		_ = unix.Close(d.fd)
	}
	d.fd = -1
}
