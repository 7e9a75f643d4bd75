package linux

import "golang.org/x/sys/unix"

// DuplicateOutput duplicates the first of these descriptors of a process that is open for writing and
// leads to the same file. It returns -1 if there is none.
func DuplicateOutput(pid int, same *unix.Stat_t, numbers ...int) (fd int) {
	for _, number := range numbers {
		fd, err := DuplicateFD(pid, number)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err == nil && flags&unix.O_ACCMODE != unix.O_RDONLY && unix.Fstat(fd, &st) == nil && st.Dev == same.Dev && st.Ino == same.Ino {
			return fd
		}
		unix.Close(fd)
	}
	return -1
}
