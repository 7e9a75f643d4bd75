package files

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/pack"
)

// own checks the file that a helper opened, opens it again for the agent, and closes the
// helper's descriptor. The helper cannot change the offset and the flags of the new
// descriptor, whose offset is 0. If the file is not of the kind that was asked for, the
// error wraps pack.ErrMalformed.
//
// A file of a pseudo file system such as procfs shows what its opener may see. So own does
// not open it again. The agent gets the descriptor of the helper, which has no privileges.
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

// access returns the access mode in which o opens a file.
func access(o op) int {
	if o == opOpenWrite {
		return unix.O_WRONLY
	}
	return unix.O_RDONLY
}

// checkFile makes sure that fd is a regular file that is open in the mode that was asked
// for and in no other. On anything else the agent could hang, or write where it must not.
// pseudo reports whether the file is on a pseudo file system.
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
	// One of the numbers is O_LARGEFILE, which the kernel sets: 0o100000 on amd64, 0o400000
	// on arm64. The other is O_NOFOLLOW. unix.O_LARGEFILE is 0.
	const harmless = unix.O_CLOEXEC | unix.O_NOFOLLOW | 0o100000 | 0o400000
	if flags&^harmless != access(o)|unix.O_NONBLOCK {
		return false, fmt.Errorf("a descriptor with flags %#o: %w", flags, pack.ErrMalformed)
	}
	return checkFileSystem(fd, o)
}

// Numbers of file systems that x/sys does not have; fs/configfs/mount.c,
// fs/fuse/control.c, security/apparmor/apparmorfs.c.
const (
	configfsMagic   = 0x62656570
	fusectlMagic    = 0x65735543
	apparmorfsMagic = 0x5a3c69f0
)

// checkFileSystem reports whether fd is on a pseudo file system, which shows the kernel. It
// refuses the pseudo file systems on which a read may block forever, such as a read of
// trace_pipe. It refuses all of them for writing, because a write changes the host, and the
// kernel may check the rights of the agent, which writes. The view of a helper never opens
// such a file for writing (sandbox.md 13).
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
