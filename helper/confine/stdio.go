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

// Descriptors 0 to 2 come from outside the view, on mounts that may be written
// to. What was opened for reading could be opened anew for writing, through
// procfs; mode, owner, times and attributes could be changed; and from a
// directory all of the host could be reached. So they are opened again: where
// the view shows the same object, there, else on a read-only copy of the mount.
//
// A file that was opened for writing stays: its opener meant the command to
// write to it. So do pipes and sockets, and what has no name any more.
//
// What is opened again begins at the same offset, but has its own from then on.

// consoleName is where a view shows the terminal.
const consoleName = "/dev/console"

// stdio has the replacements of descriptors 0 to 2.
type stdio struct {
	terminal string // the first one among them, to be shown in the view; "" none
	streams  []*stream
}

// stream is a descriptor to be replaced.
type stream struct {
	fd    int
	flags int // of open(2)
	stat  unix.Stat_t
	name  string
	shown string // its path in the view; "" none
	fresh int    // what replaces it if the view does not show it; -1 none
}

// takeStdio is called before the view is entered. The caller closes what it
// returns.
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
	case inDev, strings.HasPrefix(t.name, "/proc/"): // the view has its own
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

// look finds out what the descriptor is, and whether it has to be replaced.
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

// isTerminal tells whether it is one that the view can show.
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

// find returns a descriptor, O_PATH, of the same object in this mount
// namespace: what was inherited is in another one.
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

// check tells whether fd is the same object.
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

// copy opens the object on a read-only copy of its mount, which is nowhere.
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

// opening are flags that wait for nothing and take nothing.
func (t *stream) opening() int {
	return t.flags&(unix.O_ACCMODE|unix.O_APPEND|unix.O_DIRECTORY) | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC
}

// unlessHarmless is err, or nil if this user can change nothing about the object,
// as with a terminal that he has from sudo(8).
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

// replace is called in the view.
func (s *stdio) replace() error {
	for _, t := range s.streams {
		if err := t.unlessHarmless(t.replace()); err != nil {
			return fmt.Errorf("replacing descriptor %d: %w", t.fd, err)
		}
	}
	return nil
}

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

func (s *stdio) close() {
	for _, t := range s.streams {
		if t.fresh >= 0 {
			unix.Close(t.fresh)
		}
	}
}

// openExactly opens a canonical path.
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
