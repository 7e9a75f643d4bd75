package confine

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/sandbox"
)

// The files at descriptors 0 to 2 were opened outside of the view, on mounts
// that may be writable. Through such a descriptor a command could bypass its
// policy. Through procfs, it could open a file again for writing that was
// opened for reading. It could change mode, owner, times and attributes. And
// from a directory it could reach the whole host. So init opens these files
// again: in the view, if the view shows the same object, and otherwise on a
// read-only copy of the object's mount.
//
// A file that was opened for writing stays as it is, because its opener wanted
// the command to write to it. Pipes, sockets and files without a name stay too.
//
// A file that is opened again begins at the old one's offset. From then on it
// has an offset of its own.

// consoleName is where a view shows the terminal.
const consoleName = "/dev/console"

// stdio has the replacements of descriptors 0 to 2.
type stdio struct {
	terminal string // the name of the first terminal among them, which the view shows; "": none
	streams  []*stream
}

// stream is a descriptor that is replaced.
type stream struct {
	fd    int
	flags int // of open(2)
	stat  unix.Stat_t
	name  string // the path outside of the view
	shown string // the path in the view; "": the view does not show the file
	fresh int    // the file, opened again; -1: not yet
}

// takeStdio finds out how descriptors 0 to 2 are replaced, and opens files
// again that the view will not show. It is called before the view is entered,
// and replace afterwards. The caller closes the result.
func takeStdio(policy *sandbox.Policy) (*stdio, error) {
	s := new(stdio)
	for fd := range 3 {
		if err := s.take(fd, policy); err != nil {
			s.close()
			return nil, fmt.Errorf("taking descriptor %d: %w", fd, err)
		}
	}
	return s, nil
}

// take does that for one descriptor.
func (s *stdio) take(fd int, policy *sandbox.Policy) error {
	t := &stream{fd: fd, fresh: -1}
	if replace, err := t.look(); err != nil || !replace {
		return err
	}
	kind := t.stat.Mode & unix.S_IFMT
	device, inDev := strings.CutPrefix(t.name, "/dev/")
	switch {
	case inDev && slices.Contains([]string{"null", "zero", "full", "random", "urandom", "tty"}, device):
		t.shown = t.name
	case kind == unix.S_IFCHR && (s.terminal == "" || s.terminal == t.name) && t.isTerminal():
		s.terminal, t.shown = t.name, consoleName
	case inDev, strings.HasPrefix(t.name, "/proc/"): // the view has its own /dev and /proc
	case policy.Access(t.name) >= sandbox.Read && (kind == unix.S_IFDIR || !policy.DeniesFile(t.name)):
		t.shown = t.name
	}
	if t.shown == "" {
		if kind == unix.S_IFDIR {
			return fmt.Errorf("the directory %s is not shown in the sandbox", t.name)
		}
		if err := t.copy(); err != nil {
			return t.unlessHarmless(err)
		}
	}
	s.streams = append(s.streams, t)
	return nil
}

// look finds out which file the descriptor is, and whether it must be replaced.
func (t *stream) look() (replace bool, err error) {
	if err := unix.Fstat(t.fd, &t.stat); err != nil {
		return false, os.NewSyscallError("fstat", err)
	}
	if t.flags, err = unix.FcntlInt(uintptr(t.fd), unix.F_GETFL, 0); err != nil {
		return false, os.NewSyscallError("fcntl", err)
	}
	access := t.flags & unix.O_ACCMODE
	switch t.stat.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFBLK:
		if access == unix.O_WRONLY || access == unix.O_RDWR {
			return false, nil
		}
	case unix.S_IFCHR, unix.S_IFDIR:
	default:
		return false, nil
	}
	if t.flags&unix.O_PATH != 0 || access == unix.O_ACCMODE {
		return false, errors.New("it is open neither for reading nor for writing")
	}
	if t.name, err = os.Readlink("/proc/self/fd/" + strconv.Itoa(t.fd)); err != nil {
		return false, err
	}
	const deleted = " (deleted)"
	return t.stat.Nlink > 0 || !strings.HasSuffix(t.name, deleted), nil
}

// isTerminal reports whether the file is a terminal that the view can show: one
// that can be opened by its name here.
func (t *stream) isTerminal() bool {
	if _, err := unix.IoctlGetTermios(t.fd, unix.TCGETS); err != nil {
		return false
	}
	found, err := t.find()
	if err != nil {
		return false
	}
	unix.Close(found)
	return true
}

// find returns an O_PATH descriptor of the same object in this mount namespace.
// The inherited descriptor belongs to a mount of another namespace, which
// cannot be copied here.
func (t *stream) find() (fd int, err error) {
	fd, err = openExactly(t.name, unix.O_PATH)
	if err != nil {
		return -1, fmt.Errorf("looking for %s: %w (a pipe could be passed instead)", t.name, err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
			fd = -1
		}
	}()
	return fd, t.check(fd)
}

// check returns an error unless fd is the same object.
func (t *stream) check(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if st.Dev != t.stat.Dev || st.Ino != t.stat.Ino || st.Mode&unix.S_IFMT != t.stat.Mode&unix.S_IFMT {
		return fmt.Errorf("looking for %s: there is another object now", t.name)
	}
	return nil
}

// copy opens the object on a read-only copy of its mount. The copy is not
// mounted anywhere, so no path leads there.
func (t *stream) copy() error {
	found, err := t.find()
	if err != nil {
		return err
	}
	defer unix.Close(found)
	mount, err := unix.OpenTree(found, "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("copying the mount of %s: %w", t.name, os.NewSyscallError("open_tree", err))
	}
	defer unix.Close(mount)
	seal := func(attrs uint64) error {
		err := unix.MountSetattr(mount, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: attrs})
		return os.NewSyscallError("mount_setattr", err)
	}
	if err := seal(unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID); err != nil {
		return fmt.Errorf("copying the mount of %s: %w", t.name, err)
	}
	t.fresh, err = unix.Open("/proc/self/fd/"+strconv.Itoa(mount), t.opening(), 0)
	if err != nil {
		return fmt.Errorf("opening %s again: %w", t.name, err)
	}
	if t.stat.Mode&unix.S_IFMT == unix.S_IFBLK {
		// Devices can be written to on a read-only mount too.
		if err := seal(unix.MOUNT_ATTR_NODEV); err != nil {
			return fmt.Errorf("copying the mount of %s: %w", t.name, err)
		}
	}
	return nil
}

// opening returns the flags for opening the file again: without waiting, and
// without making a terminal the controlling one.
func (t *stream) opening() int {
	return t.flags&(unix.O_ACCMODE|unix.O_APPEND|unix.O_DIRECTORY) | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC
}

// unlessHarmless returns nil instead of err if the command may keep the
// descriptor, because this user neither owns the file nor may write to it.
// Under sudo(8), for example, a terminal belongs to another user.
func (t *stream) unlessHarmless(err error) error {
	if err == nil || int(t.stat.Uid) == os.Geteuid() {
		return err
	}
	fd := "/proc/self/fd/" + strconv.Itoa(t.fd)
	if unix.Faccessat(unix.AT_FDCWD, fd, unix.W_OK, unix.AT_EACCESS) == unix.EACCES {
		return nil
	}
	return err
}

// replace replaces the descriptors. It is called in the view.
func (s *stdio) replace() error {
	for _, t := range s.streams {
		if err := t.unlessHarmless(t.replace()); err != nil {
			return fmt.Errorf("replacing descriptor %d: %w", t.fd, err)
		}
	}
	return nil
}

// replace replaces the one descriptor, with its offset and its flags.
func (t *stream) replace() error {
	if t.fresh < 0 {
		fd, err := openExactly(t.shown, t.opening())
		if err != nil {
			return fmt.Errorf("opening %s in the sandbox: %w", t.shown, err)
		}
		t.fresh = fd
	}
	if err := t.check(t.fresh); err != nil {
		return err
	}
	if at, err := unix.Seek(t.fd, 0, unix.SEEK_CUR); err == nil && at > 0 {
		if _, err := unix.Seek(t.fresh, at, unix.SEEK_SET); err != nil {
			return fmt.Errorf("seeking in %s: %w", t.name, err)
		}
	}
	if _, err := unix.FcntlInt(uintptr(t.fresh), unix.F_SETFL, t.flags); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	return os.NewSyscallError("dup3", unix.Dup3(t.fresh, t.fd, 0))
}

// close closes the files that were opened again; the descriptors 0 to 2 stay.
func (s *stdio) close() {
	for _, t := range s.streams {
		if t.fresh >= 0 {
			unix.Close(t.fresh)
		}
	}
}

// openExactly opens a canonical path. It fails if a symlink is now on the way.
func openExactly(path string, flags int) (int, error) {
	for {
		fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
			Flags:   uint64(flags) | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_NO_SYMLINKS,
		})
		if err != unix.EAGAIN && err != unix.EINTR {
			return fd, err
		}
	}
}
