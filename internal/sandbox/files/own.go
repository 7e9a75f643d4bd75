package files

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/pack"
)

// own checks what a helper opened, opens it again for the agent, and closes the
// helper's descriptor. The result has an offset and flags that the helper
// cannot change any more, and begins at the start of the file. A file that
// cannot be what was asked for is pack.ErrMalformed.
//
// A file of the kernel (procfs and the like) shows what its opener may see. So it
// is not opened again: the agent gets the helper's descriptor, which has no
// privileges.
//
// Opening may block on the file's file system, as any request may. So the goroutine
// that reads the answers of the helper must not call it.
func own(fd int, o op) (int, error) {
	pseudo, err := checkFile(fd, o)
	if err == nil && pseudo {
		return fd, nil
	}
	defer unix.Close(fd)
	if err != nil {
		return -1, err
	}
	flags := access(o) | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY
	for {
		own, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), flags, 0)
		if err != unix.EINTR {
			return own, err
		}
	}
}

// access is the mode in which o opens a file.
func access(o op) int {
	if o == opOpenWrite {
		return unix.O_WRONLY
	}
	return unix.O_RDONLY
}

// checkFile makes sure that fd is as the helper says: a regular file that
// is open for what was asked and for nothing else. On anything else the agent
// could hang, or write where it must not. It reports whether the file is one of
// the kernel.
func checkFile(fd int, o op) (pseudo bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, os.NewSyscallError("fstat", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return false, fmt.Errorf("a descriptor of file type %#o: %w", st.Mode&unix.S_IFMT, pack.ErrMalformed)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return false, os.NewSyscallError("fcntl", err)
	}
	// The last is O_LARGEFILE, which the kernel sets; that of the package is 0.
	// On arm64 the two have changed places.
	const harmless = unix.O_CLOEXEC | unix.O_NOFOLLOW | 0o100000 | 0o400000
	if flags&^harmless != access(o)|unix.O_NONBLOCK {
		return false, fmt.Errorf("a descriptor with flags %#o: %w", flags, pack.ErrMalformed)
	}
	return checkFileSystem(fd, o)
}

// Numbers that x/sys does not have; fs/configfs/mount.c, fs/fuse/control.c,
// security/apparmor/apparmorfs.c.
const (
	configfsMagic   = 0x62656570
	fusectlMagic    = 0x65735543
	apparmorfsMagic = 0x5a3c69f0
)

// checkFileSystem reports whether fd is on a file system that shows the kernel.
// It refuses those on which reading may wait for good, such as of trace_pipe,
// and all of them for writing: that changes the host, and the kernel may ask
// what the agent, which writes, is allowed. A view does not (sandbox.md 13).
func checkFileSystem(fd int, o op) (pseudo bool, err error) {
	var st unix.Statfs_t
	for {
		err := unix.Fstatfs(fd, &st)
		if err == nil {
			break
		}
		if err != unix.EINTR {
			return false, os.NewSyscallError("fstatfs", err)
		}
	}
	switch uint32(st.Type) { // statfs(2)
	case unix.TRACEFS_MAGIC, unix.DEBUGFS_MAGIC, unix.SECURITYFS_MAGIC, apparmorfsMagic:
		return true, unix.EACCES
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC,
		configfsMagic, unix.BPF_FS_MAGIC, fusectlMagic, unix.BINFMTFS_MAGIC, unix.EFIVARFS_MAGIC:
		if o == opOpenWrite {
			return true, fmt.Errorf("a descriptor on file system %#x: %w", st.Type, pack.ErrMalformed)
		}
		return true, nil
	}
	return false, nil
}
