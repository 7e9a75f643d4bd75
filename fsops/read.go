package fsops

import (
	"golang.org/x/sys/unix"
)

// MaxFileSize is how many bytes [ReadFrom] returns at most; rpc.md 5.3.
const MaxFileSize = 512 << 20

// firstRead is the size of the first buffer for a file that does not say how
// large it is; procfs(5) writes at most a page at a time.
const firstRead = 4096

// ReadFile returns the contents of the regular file at path: [OpenRead] and
// [ReadFrom].
func ReadFile(path string, links Links, alloc Alloc) ([]byte, error) {
	var st unix.Stat_t
	fd, err := openRead(path, links, &st)
	if err != nil {
		return nil, err
	}
	return readFrom(fd, &st, path, alloc)
}

// OpenRead opens the file at path for reading. What is not a regular file is
// an [InvalidError]. The caller closes the descriptor.
func OpenRead(path string, links Links) (int, error) {
	var st unix.Stat_t
	return openRead(path, links, &st)
}

func openRead(path string, links Links, st *unix.Stat_t) (int, error) {
	fd, err := openFile(path, unix.O_RDONLY, links)
	if err != nil {
		return -1, pathError("open", path, err)
	}
	if err = fstat(fd, st); err == nil && !isRegular(st) {
		err = notRegular(path)
	}
	if err != nil {
		unix.Close(fd)
		return -1, pathError("stat", path, err)
	}
	return fd, nil
}

// ReadFrom returns the contents of fd, which it closes in all cases, also of
// files in procfs, which claim to be empty. What is not a regular file, and
// one over [MaxFileSize], is an [InvalidError]; path is for the texts of
// errors. The slice comes from alloc and belongs to the caller.
func ReadFrom(fd int, path string, alloc Alloc) ([]byte, error) {
	var st unix.Stat_t
	err := fstat(fd, &st)
	if err == nil && !isRegular(&st) {
		err = notRegular(path)
	}
	if err != nil {
		unix.Close(fd)
		return nil, pathError("stat", path, err)
	}
	return readFrom(fd, &st, path, alloc)
}

// readFrom reads fd, which is the regular file st, and closes it.
func readFrom(fd int, st *unix.Stat_t, path string, alloc Alloc) ([]byte, error) {
	defer unix.Close(fd)
	if st.Size > MaxFileSize {
		return nil, tooLarge(path)
	}

	size := int(st.Size)
	if size == 0 {
		size = firstRead
	}
	buf, err := alloc.get(size)
	if err != nil {
		return nil, err
	}
	buf = buf[:min(size, cap(buf))]
	for n := 0; ; {
		if n == len(buf) {
			// Full: usually this is the end, which only a read can tell. It
			// is not worth a larger buffer.
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
