package fswatch

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
)

// open is openat(2). It repeats a call that a signal has interrupted.
func open(dir int, path string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(dir, path, flags|unix.O_CLOEXEC, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// openPath opens a directory for reading, one name after the other: a link gives ENOTDIR.
func openPath(path string) (int, error) {
	at, err := open(unix.AT_FDCWD, "/", unix.O_PATH|unix.O_DIRECTORY)
	for rest := strings.TrimPrefix(path, "/"); rest != "" && err == nil; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		above := at
		at, err = open(above, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
		unix.Close(above)
	}
	if err != nil {
		return -1, err
	}
	defer unix.Close(at)
	return open(at, ".", unix.O_RDONLY|unix.O_DIRECTORY)
}

// step opens name in the directory at, and returns its type.
func step(at int, name string) (fd int, kind uint32, err error) {
	fd, err = open(at, name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return -1, 0, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, 0, err
	}
	return fd, st.Mode & unix.S_IFMT, nil
}

// ownFD is the name of the object that fd is of, for calls that take a path only.
func ownFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// ordinary refuses what is on a file system of the kernel.
func ordinary(fd int) error {
	kind, err := fsops.KindOf(fd)
	if err == nil && kind != fsops.Ordinary {
		return ErrNotOrdinary
	}
	return err
}
