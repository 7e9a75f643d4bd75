package linux

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// DuplicateOutput duplicates the first of these descriptors of a process that is open for writing and
// leads to the same file. It returns -1 if there is none.
func DuplicateOutput(pid int, same *unix.Stat_t, numbers ...int) (fd int) {
	for _, number := range numbers {
		fd, err := DuplicateFD(pid, number)
		if err == unix.EPERM || err == unix.ENOSYS { // Docker's profile refuses pidfd_getfd(2)
			fd, err = openOutput(pid, number)
		}
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

// openOutput opens the file of a process's descriptor again, if it is open for writing there. It opens no file in
// which the process writes at an offset of its own, because it would overwrite what is added.
func openOutput(pid, number int) (fd int, err error) {
	var link, file unix.Stat_t
	name := fmt.Sprintf("/proc/%d/fd/%d", pid, number)
	if err := unix.Lstat(name, &link); err != nil {
		return -1, err
	}
	if err := unix.Stat(name, &file); err != nil {
		return -1, err
	}
	if kind := file.Mode & unix.S_IFMT; link.Mode&0o200 == 0 || kind != unix.S_IFIFO && kind != unix.S_IFCHR { // proc_pid_fd(5)
		return -1, unix.EBADF
	}
	if fd, err = unix.Open(name, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0); err != nil { // a pipe that nobody reads is ENXIO
		return -1, err
	}
	if _, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_WRONLY); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
