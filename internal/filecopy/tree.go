package filecopy

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
)

// attributes are the attributes of an entry besides its content.
type attributes struct {
	mode     uint32
	modified time.Time
	owner    bool // uid and gid are set
	uid, gid int
}

// tree makes directories, links and files below a directory. It opens one name after the other, and
// follows no link. It keeps the directories open that lead to the last place.
type tree struct {
	base  int
	stack []level
	names []string // the names of the stack
	// omitted is called if a directory does not take its mode, owner or time. A tree that makes
	// directories must have it.
	omitted func(names []string, err error)
}

// level is an open directory.
type level struct {
	fd int
	// made has the attributes that the tree sets when it leaves the directory; nil: the tree has
	// not made it.
	made *attributes
}

// enter opens the directory at a place and returns its descriptor, which is valid until the next
// call. It makes missing directories on the way.
func (t *tree) enter(names []string) (int, error) {
	same := 0
	for same < len(names) && same < len(t.names) && names[same] == t.names[same] {
		same++
	}
	t.leave(same)
	for _, name := range names[same:] {
		fd, err := t.step(name)
		if err == unix.ENOENT {
			if err = unix.Mkdirat(t.top(), name, 0o777); err == nil || err == unix.EEXIST {
				fd, err = t.step(name)
			}
		}
		if err != nil {
			return -1, err
		}
		t.push(name, fd, nil)
	}
	return t.top(), nil
}

// top returns the descriptor of the current directory.
func (t *tree) top() int {
	if len(t.stack) == 0 {
		return t.base
	}
	return t.stack[len(t.stack)-1].fd
}

// step opens a directory in the current directory.
func (t *tree) step(name string) (int, error) {
	return unix.Openat(t.top(), name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

func (t *tree) push(name string, fd int, made *attributes) {
	t.stack, t.names = append(t.stack, level{fd, made}), append(t.names, name)
}

// leave leaves all directories except the first n. Directories that the tree has made get their
// mode and times now, because nothing is written there later, unless the stream returns to them.
func (t *tree) leave(n int) {
	for len(t.stack) > n {
		l := t.stack[len(t.stack)-1]
		if l.made != nil {
			if err := l.made.give(l.fd); err != nil {
				t.omitted(t.names, err)
			}
		}
		t.stack, t.names = t.stack[:len(t.stack)-1], t.names[:len(t.names)-1]
		_ = unix.Close(l.fd) // nothing was written to it
	}
}

// give gives the attributes to an open file or directory.
func (a *attributes) give(fd int) error {
	if a.owner {
		if err := unix.Fchown(fd, a.uid, a.gid); err != nil {
			return fmt.Errorf("setting the owner: %w", err)
		}
	}
	if err := unix.Fchmod(fd, a.mode); err != nil {
		return fmt.Errorf("setting the mode: %w", err)
	}
	if err := setTimes(fd, a.times()); err != nil {
		return fmt.Errorf("setting the time: %w", err)
	}
	return nil
}

// setTimes is futimens(3): utimensat(2) without a path, which package unix does not have.
func setTimes(fd int, times []unix.Timespec) error {
	_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&times[0])), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// times leaves the time of the last access as it is.
func (a *attributes) times() []unix.Timespec {
	modified := unix.Timespec{Nsec: unix.UTIME_OMIT}
	if !a.modified.IsZero() {
		modified = unix.Timespec{Sec: a.modified.Unix(), Nsec: int64(a.modified.Nanosecond())}
	}
	return []unix.Timespec{{Nsec: unix.UTIME_OMIT}, modified}
}

// descriptor returns a path to an open file.
func descriptor(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// directory makes a directory. An existing directory stays unchanged.
func (t *tree) directory(names []string, a *attributes) error {
	if len(names) == 0 {
		t.leave(0)
		return nil
	}
	dir, err := t.enter(names[:len(names)-1])
	if err != nil {
		return err
	}
	name := names[len(names)-1]
	err = unix.Mkdirat(dir, name, 0o700)
	if err == unix.EEXIST {
		_, err := t.enter(names)
		return err
	}
	if err != nil {
		return err
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	t.push(name, fd, a)
	return nil
}

// link makes a symbolic link. It replaces whatever exists there, except a directory.
func (t *tree) link(names []string, to string, a *attributes) error {
	return t.replace(names, func(dir int, name string) error {
		if err := unix.Symlinkat(to, dir, name); err != nil {
			return err
		}
		if a.owner {
			if err := unix.Fchownat(dir, name, a.uid, a.gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return fmt.Errorf("setting the owner: %w", err)
			}
		}
		return unix.UtimesNanoAt(dir, name, a.times(), unix.AT_SYMLINK_NOFOLLOW)
	})
}

// again gives a file below the base another name.
func (t *tree) again(names, first []string) error {
	from := tree{base: t.base}
	defer from.leave(0) // it makes nothing
	for _, name := range first[:len(first)-1] {
		fd, err := from.step(name)
		if err != nil {
			return err
		}
		from.push(name, fd, nil)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(from.top(), first[len(first)-1], &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errors.New("is one more name of what is no file")
	}
	return t.replace(names, func(dir int, name string) error {
		return unix.Linkat(from.top(), first[len(first)-1], dir, name, 0)
	})
}

// replace calls make to make a file in a directory under its name. If the name exists, make uses a
// temporary name, and the new file is moved over the old one.
func (t *tree) replace(names []string, make func(dir int, name string) error) error {
	dir, err := t.enter(names[:len(names)-1])
	if err != nil {
		return err
	}
	return replace(dir, names[len(names)-1], make)
}

func replace(dir int, name string, make func(dir int, name string) error) error {
	err := make(dir, name)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	temporary := temporaryName()
	// This is needed even after a success, because rename(2) does nothing if both names are the
	// same file.
	defer unix.Unlinkat(dir, temporary, 0)
	if err := make(dir, temporary); err != nil {
		return err
	}
	return unix.Renameat(dir, temporary, dir, name)
}

func temporaryName() string { return ".agent-cp-" + rand.Text() }

// newFile is a file that is being written, and not in its place yet. The zero value is a file that
// cannot be written, and whose content is read and dropped.
type newFile struct {
	*os.File
	dir  int
	name string
	temp string // its temporary name; "": none
	size int64
	// short says that the content ends with zeros which were not written.
	short bool
	// over is the old file, if only the old file can be written, and no new one can take its place.
	over *os.File
}

// create begins a file. The caller puts it in its place, or drops it, before it uses the tree
// again. Until then the file has no name, if the file system supports this. So nothing is left of
// it, however this program ends.
func (t *tree) create(names []string) (*newFile, error) {
	dir, err := t.enter(names[:len(names)-1])
	if err != nil {
		return nil, err
	}
	f := &newFile{dir: dir, name: names[len(names)-1]}
	fd, err := unix.Openat(dir, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	switch err {
	case nil:
		f.File = os.NewFile(uintptr(fd), f.name)
	case unix.EOPNOTSUPP, unix.EISDIR, unix.EINVAL, unix.ENOENT:
		err = f.temporary()
	}
	if refused(err) && f.old() {
		// The new content waits elsewhere until it has arrived completely.
		if f.File, err = os.CreateTemp("", ".agent-cp-"); err == nil {
			err = os.Remove(f.Name())
		}
		if err != nil {
			err = fmt.Errorf("keeping the new content until all of it has come: %w", err)
		}
	}
	if err != nil {
		_ = f.close() // nothing was written
		return nil, err
	}
	return f, nil
}

// refused reports whether an error means that no file can be made or replaced here. The last file
// system may be read-only with a file of another one in it, and a mount point is busy.
func refused(err error) bool {
	return err == unix.EACCES || err == unix.EPERM || err == unix.EROFS || err == unix.EBUSY
}

// old opens the old file for writing, and reports whether that was possible.
func (f *newFile) old() bool {
	fd, err := unix.Openat(f.dir, f.name, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	over := os.NewFile(uintptr(fd), f.name)
	if info, err := over.Stat(); err != nil || !info.Mode().IsRegular() {
		_ = over.Close() // nothing was written to it
		return false
	}
	f.over = over
	return true
}

// temporary makes the file under a temporary name.
func (f *newFile) temporary() error {
	f.temp = temporaryName()
	fd, err := unix.Openat(f.dir, f.temp, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		f.temp = ""
		return err
	}
	f.File = os.NewFile(uintptr(fd), f.name)
	return nil
}

// put puts the file in its place.
func (f *newFile) put(a *attributes) error {
	if f.short {
		if err := f.Truncate(f.size); err != nil {
			return err
		}
	}
	if f.over != nil {
		return f.overwrite(a)
	}
	fd := int(f.Fd())
	if err := a.give(fd); err != nil {
		return err
	}
	var err error
	if f.temp == "" {
		err = replace(f.dir, f.name, func(dir int, name string) error {
			return unix.Linkat(unix.AT_FDCWD, descriptor(fd), dir, name, unix.AT_SYMLINK_FOLLOW)
		})
	} else if err = unix.Renameat(f.dir, f.temp, f.dir, f.name); err == nil {
		f.temp = ""
	}
	if refused(err) && f.old() {
		return f.overwrite(a)
	}
	return err
}

// overwrite writes the content over the old file, as cp(1) does. A user who does not own the old file
// cannot give it a mode and a time.
func (f *newFile) overwrite(a *attributes) error {
	err := f.over.Truncate(0)
	for at := int64(0); err == nil && at < f.size; {
		from, to := linux.NextData(int(f.Fd()), at, f.size)
		_, err = io.Copy(io.NewOffsetWriter(f.over, from), io.NewSectionReader(f, from, to-from))
		at = to
	}
	if err == nil {
		err = f.over.Truncate(f.size)
	}
	if err != nil {
		return fmt.Errorf("only a part was written: %w", reason(err))
	}
	if err := a.give(int(f.over.Fd())); err != nil && !errors.Is(err, unix.EPERM) {
		return err
	}
	return nil
}

// drop closes the file. If the file was not put in its place, it is gone.
func (f *newFile) drop() error {
	err := f.close()
	if f.temp != "" {
		_ = unix.Unlinkat(f.dir, f.temp, 0) // it may be gone
	}
	return err
}

func (f *newFile) close() (err error) {
	for _, file := range []*os.File{f.File, f.over} {
		if file != nil {
			err = errors.Join(err, file.Close())
		}
	}
	return err
}
