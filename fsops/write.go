package fsops

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// pipeTimeout is how long a write waits for the reader of a full pipe or
// terminal. A mutation holds up the other file requests of its connection,
// so it must not wait for good.
const pipeTimeout = 5 * time.Second

// WriteFile replaces the contents of the file at path: OpenWrite of files and
// [WriteTo].
func WriteFile(ctx context.Context, files FS, path string, data []byte, links Links) error {
	fd, err := files.OpenWrite(ctx, path, links)
	if err != nil {
		return err
	}
	return WriteTo(fd, path, data)
}

// OpenWrite opens the file at path for writing and empties it: mode and hard
// links stay. A missing file is created with mode 0666 less the umask, also
// through a dangling link; a missing parent is not. The caller closes the
// descriptor.
//
// Devices and fifos are opened too; a fifo that nobody reads is ENXIO. With
// [RefuseLinks] only regular files are.
func (Host) OpenWrite(_ context.Context, path string, links Links) (int, error) {
	fd, err := openFile(path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, links)
	if err == nil && links == RefuseLinks {
		var st unix.Stat_t
		if err = fstat(fd, &st); err == nil && !isRegular(&st) {
			err = notRegular(path)
		}
		if err != nil {
			unix.Close(fd)
		}
	}
	if err != nil {
		return -1, pathError("open", path, err)
	}
	return fd, nil
}

// WriteTo writes data to fd, which it closes in all cases; path is for the
// texts of errors. A fifo whose reader leaves it full for five seconds is
// EAGAIN.
func WriteTo(fd int, path string, data []byte) error {
	err := writeAll(fd, data)
	// A quota or a network file system may report only here.
	if cerr := unix.Close(fd); err == nil && cerr != unix.EINTR {
		err = cerr
	}
	return pathError("write", path, err)
}

// writeAll writes data to fd, which stays open.
func writeAll(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		switch err {
		case nil:
			data = data[n:]
		case unix.EINTR:
		case unix.EAGAIN:
			return writeSlowly(fd, data)
		default:
			return err
		}
	}
	return nil
}

// writeSlowly writes to a pipe or terminal that is full.
func writeSlowly(fd int, data []byte) error {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(dup), "")
	defer f.Close()
	if err := f.SetWriteDeadline(time.Now().Add(pipeTimeout)); err != nil {
		return unix.EAGAIN // nothing that can be waited for
	}
	_, err = f.Write(data)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return unix.EAGAIN
	}
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return errno
	}
	return err
}

// CreateDirectory makes a directory with mode 0777 less the umask. With
// recursive it makes missing parents too, and an existing directory is fine;
// else that is EEXIST and a missing parent ENOENT.
func (Host) CreateDirectory(_ context.Context, path string, recursive bool, links Links) error {
	var err error
	switch {
	case links == RefuseLinks:
		err = makeBeneath(path, recursive)
	case recursive:
		_, err = (*View)(nil).makeAll(path)
	default:
		err = mkdirAt(unix.AT_FDCWD, path)
	}
	return pathError("mkdir", path, err)
}

func mkdirAt(dir int, path string) error {
	for {
		if err := unix.Mkdirat(dir, path, 0o777); err != unix.EINTR {
			return err
		}
	}
}

// makeAll makes path and its missing parents. It tells whether path itself
// is new. The depth is bounded by PATH_MAX.
func (v *View) makeAll(path string) (created bool, err error) {
	if v != nil {
		return v.makeDirectory(path, true, 0)
	}
	err = mkdirAt(unix.AT_FDCWD, path)
	if err == unix.ENOENT {
		if parent, _ := splitPath(path); parent != "/" {
			if _, err := v.makeAll(parent); err != nil {
				return false, err
			}
			err = mkdirAt(unix.AT_FDCWD, path)
		}
	}
	if err == nil {
		return true, nil
	}
	var st unix.Stat_t
	if fstatAt(unix.AT_FDCWD, path, &st, 0) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return false, nil
	}
	return false, err
}

// makeBeneath makes path without passing through a link. With recursive
// whatever is not a directory is ENOTDIR.
func makeBeneath(path string, recursive bool) error {
	if !recursive {
		if path == "/" {
			return unix.EEXIST
		}
		dir, name, err := openParent(path)
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		return mkdirAt(dir, name)
	}

	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW
	dir, err := openAt(unix.AT_FDCWD, "/", flags, 0)
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		if name == "" {
			continue
		}
		next, err := openAt(dir, name, flags, 0)
		if err == unix.ENOENT {
			if err = mkdirAt(dir, name); err == nil || err == unix.EEXIST {
				next, err = openAt(dir, name, flags, 0)
			}
		}
		unix.Close(dir)
		if err != nil {
			return err
		}
		dir = next
	}
	return unix.Close(dir)
}
