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

// Writing says how OpenWrite opens a file. The zero value makes a missing file and empties
// an existing one.
type Writing struct {
	Links Links
	// New opens only a file that it makes; a name that exists, even a link, is EEXIST.
	New bool
	// Old opens only a file that exists, and does not empty it.
	Old bool
	// Private gives a new file the mode 0600 less the umask, and not 0666.
	Private bool
}

// flags returns the flags and the mode of open(2).
func (o Writing) flags() (flags int, mode uint32) {
	flags, mode = unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o666
	switch {
	case o.New:
		flags |= unix.O_EXCL | unix.O_NOFOLLOW
	case o.Old:
		flags = unix.O_WRONLY
	}
	if o.Private {
		mode = 0o600
	}
	return flags, mode
}

// OpenWrite opens the file at path for writing and empties it; its mode and
// hard links stay. A missing file is created with mode 0666 less the umask,
// also through a dangling link; missing parents are not created. The caller
// closes the descriptor. [Writing] has the exceptions.
//
// Devices and fifos are opened too; a fifo without a reader is ENXIO. With
// [RefuseLinks] only regular files are opened.
func (Host) OpenWrite(_ context.Context, path string, o Writing) (int, error) {
	flags, mode := o.flags()
	fd, err := openFile(path, flags, mode, o.Links)
	if err == nil && o.Links == RefuseLinks {
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
func (v *View) OpenWrite(_ context.Context, path string, o Writing) (fd int, err error) {
	how := o.Links.lookup(FollowLast) | forWriting
	if o.New {
		how &^= FollowLast
	}
	flags, mode := o.flags()
	fd, err = v.openForWrite(v.paths.base, path, how, flags, mode)
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
