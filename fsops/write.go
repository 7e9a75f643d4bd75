package fsops

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// pipeTimeout is how long a write waits for a reader of a full pipe or
// terminal. A mutation delays the other file requests of its connection, so it
// must not wait for ever.
const pipeTimeout = 5 * time.Second

// WriteFile replaces the contents of the file at path: it calls OpenWrite of files
// and then [WriteTo].
func WriteFile(ctx context.Context, files FS, path string, data []byte, links Links) error {
	fd, err := files.OpenWrite(ctx, path, links)
	if err != nil {
		return err
	}
	return WriteTo(fd, path, data)
}

// OpenWrite opens the file at path for writing and empties it; its mode and
// hard links stay. A missing file is created with mode 0666 less the umask,
// also through a dangling link; missing parents are not created. The caller
// closes the descriptor.
//
// Devices and fifos are opened too; a fifo without a reader is ENXIO. With
// [RefuseLinks] only regular files are opened.
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

// OpenWrite opens the regular file at path for writing and empties it, or creates
// it, as OpenWrite of [Host] does. The caller closes the descriptor.
func (v *View) OpenWrite(_ context.Context, path string, links Links) (fd int, err error) {
	how := links.lookup(FollowLast) | forWriting
	fd, err = v.openForWrite(v.paths.base, path, how, unix.O_TRUNC, 0o666)
	return fd, pathError("open", path, err)
}

// WriteTo writes data to fd, which it closes in all cases; path is for the
// texts of errors. A fifo that stays full for five seconds is EAGAIN.
func WriteTo(fd int, path string, data []byte) error {
	err := writeAll(fd, data)
	// With a quota or a network file system, an error may first appear here.
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
		return unix.EAGAIN // the runtime cannot wait for this kind of file
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
