package pack

import (
	"fmt"
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
