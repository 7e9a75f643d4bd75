package resolve

import (
	"cmp"

	"golang.org/x/sys/unix"
)

// OpenBeneath opens the absolute path name in the directory root, as if that were the
// root directory. A symlink on the way or at the end is an error (ELOOP). If flags
// is 0, the descriptor is O_PATH. The caller closes it. Errors are those of
// openat2(2), without a name.
func OpenBeneath(root int, name string, flags uint64) (int, error) {
	name = name[1:]
	name = cmp.Or(name, ".")
	flags = cmp.Or(flags, unix.O_PATH)
	for {
		fd, err := unix.Openat2(root, name, &unix.OpenHow{
			Flags:   flags | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
		})
		if err != unix.EAGAIN && err != unix.EINTR {
			return fd, err
		}
	}
}

// FileKind returns the S_IFMT bits of the object that fd refers to.
func FileKind(fd int) (uint32, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return st.Mode & unix.S_IFMT, err
}
