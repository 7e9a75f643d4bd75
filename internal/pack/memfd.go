package pack

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// SealedFile returns a descriptor, close-on-exec, of a file in memory that has
// data as its content and that nobody can change. Its offset is 0. The caller
// closes it. The name shows up in /proc only, for debugging.
func SealedFile(name string, data []byte) (int, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, os.NewSyscallError("memfd_create", err)
	}
	for off := 0; off < len(data) && err == nil; {
		var n int
		if n, err = unix.Pwrite(fd, data[off:], int64(off)); err == unix.EINTR {
			err = nil
		}
		off += max(n, 0)
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS,
			unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("writing a memfd: %w", err)
	}
	return fd, nil
}

// SizedFile returns a descriptor, close-on-exec, of a file in memory that has size bytes, all 0, and whose size
// nobody can change. It takes no memory where nothing is written. The caller closes it. The name shows up in /proc
// only, for debugging.
func SizedFile(name string, size int64) (int, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, os.NewSyscallError("memfd_create", err)
	}
	if err = unix.Ftruncate(fd, size); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("sizing a memfd: %w", err)
	}
	return fd, nil
}

// ReadFile reads a whole file of at most limit bytes from its start. It does not
// move the offset of fd, which other processes may share.
func ReadFile(fd, limit int) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	if st.Size > int64(limit) {
		return nil, fmt.Errorf("%d bytes, more than %d", st.Size, limit)
	}
	content := make([]byte, st.Size)
	for n := 0; n < len(content); {
		m, err := unix.Pread(fd, content[n:], int64(n))
		if err == nil && m == 0 {
			return nil, io.ErrUnexpectedEOF
		}
		if err != nil && err != unix.EINTR {
			return nil, os.NewSyscallError("pread", err)
		}
		n += max(m, 0)
	}
	return content, nil
}
