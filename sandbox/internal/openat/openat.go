// Package openat opens canonical paths as they stand, following nothing, and
// tells what a descriptor refers to. Linux only; its funcs may run at once.
package openat

import "golang.org/x/sys/unix"

// Beneath opens the absolute path name below root, as it stands: a symlink
// on the way or at the end is ELOOP. Without flags the descriptor is O_PATH.
func Beneath(root int, name string, flags uint64) (int, error) {
	name = name[1:]
	if name == "" {
		name = "."
	}
	if flags == 0 {
		flags = unix.O_PATH
	}
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

// Kind is the type of what fd refers to, as S_IFMT has it.
func Kind(fd int) (uint32, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return st.Mode & unix.S_IFMT, err
}
