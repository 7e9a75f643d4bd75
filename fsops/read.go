package fsops

import (
	"cmp"
	"context"

	"golang.org/x/sys/unix"
)

// MaxFileSize bounds the files that [ReadFrom] reads, in bytes. The reference has
// the same bound (rpc.md 5.3).
const MaxFileSize = 512 << 20

// firstRead is the size of the first buffer for a file that claims to be empty, as
// the files of procfs(5) do. The kernel returns their contents one page at a time.
const firstRead = 4096

// ReadFile returns the contents of the regular file at path: it calls OpenRead of
// files and then [ReadFrom]. So this process reads the file even if a helper
// behind files opens it.
func ReadFile(ctx context.Context, files FS, path string, links Links, alloc Alloc) ([]byte, error) {
	fd, err := files.OpenRead(ctx, path, links)
	if err != nil {
		return nil, err
	}
	return ReadFrom(fd, path, alloc)
}

// OpenRead opens the file at path for reading. Anything but a regular file is
// an [InvalidError]. The caller closes the descriptor.
func (Host) OpenRead(_ context.Context, path string, links Links) (int, error) {
	fd, err := openFile(path, unix.O_RDONLY, 0, links)
	if err != nil {
		return -1, pathError("open", path, err)
	}
	var st unix.Stat_t
	if err = fstat(fd, &st); err == nil && !isRegular(&st) {
		err = notRegular(path)
	}
	if err != nil {
		unix.Close(fd)
		return -1, pathError("stat", path, err)
	}
	return fd, nil
}

// OpenRead opens the regular file at path for reading. The caller closes the
// descriptor.
func (v *View) OpenRead(_ context.Context, path string, links Links) (fd int, err error) {
	fd, err = v.openForRead(v.paths.base, path, links.lookup(FollowLast))
	return fd, pathError("open", path, err)
}

// ReadFrom returns the contents of fd, which it closes in all cases. Files of
// procfs, which claim to be empty, are read too. Anything but a regular file,
// and a file over [MaxFileSize], is an [InvalidError]; path is for the texts of
// errors. The slice comes from alloc and belongs to the caller.
func ReadFrom(fd int, path string, alloc Alloc) ([]byte, error) {
	defer unix.Close(fd)
	var st unix.Stat_t
	err := fstat(fd, &st)
	if err == nil && !isRegular(&st) {
		err = notRegular(path)
	}
	if err != nil {
		return nil, pathError("stat", path, err)
	}
	if st.Size > MaxFileSize {
		return nil, tooLarge(path)
	}

	size := int(st.Size)
	size = cmp.Or(size, firstRead)
	buf, err := alloc.get(size)
	if err != nil {
		return nil, err
	}
	buf = buf[:min(size, cap(buf))]
	for n := 0; ; {
		if n == len(buf) {
			// The buffer is full. Usually the file ends here, but only another
			// read can show that. One byte is enough for that read.
			var more [1]byte
			m, err := read(fd, more[:])
			if err != nil {
				return nil, pathError("read", path, err)
			}
			if m == 0 {
				return buf, nil
			}
			if n >= MaxFileSize {
				return nil, tooLarge(path)
			}
			larger, err := alloc.get(min(2*n, MaxFileSize))
			if err != nil {
				return nil, err
			}
			buf = append(larger[:0], buf...)
			buf = append(buf, more[0])
			n++
			buf = buf[:min(cap(buf), MaxFileSize)]
			continue
		}
		m, err := read(fd, buf[n:])
		if err != nil {
			return nil, pathError("read", path, err)
		}
		if m == 0 {
			return buf[:n], nil
		}
		n += m
	}
}

func tooLarge(path string) error {
	return invalidf("file %q is larger than %d bytes", path, MaxFileSize)
}

func read(fd int, p []byte) (int, error) {
	for {
		n, err := unix.Read(fd, p)
		if err != unix.EINTR {
			return max(n, 0), err
		}
	}
}
