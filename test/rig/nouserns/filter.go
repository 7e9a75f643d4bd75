package main

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forbidden are system calls about namespaces, mounts, other processes and the kernel that Docker's
// profile refuses without a capability.
var forbidden = []uint32{
	unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_CHROOT, unix.SYS_PIVOT_ROOT,
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE, unix.SYS_OPEN_TREE_ATTR, unix.SYS_FSOPEN,
	unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR,
	unix.SYS_PIDFD_GETFD, unix.SYS_KCMP, unix.SYS_PROCESS_MADVISE, unix.SYS_OPEN_BY_HANDLE_AT,
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_FANOTIFY_INIT,
	unix.SYS_ADD_KEY, unix.SYS_KEYCTL, unix.SYS_REQUEST_KEY,
}

// landlock are the system calls that a kernel without Landlock does not know.
var landlock = []uint32{unix.SYS_LANDLOCK_CREATE_RULESET, unix.SYS_LANDLOCK_ADD_RULE, unix.SYS_LANDLOCK_RESTRICT_SELF}

// namespaces are the flags of clone(2) that make a namespace. CLONE_NEWTIME is missing, because
// clone(2) uses its bit as a part of the signal.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// Offsets of the members of struct seccomp_data, in bytes (seccomp(2)). On both architectures, the
// low half of an argument comes first.
const (
	dataNumber       = 0
	dataArchitecture = 4
	dataArgument     = 16
	dataArgument2    = 24
)

// filter returns the filter. It allows all system calls that it does not name.
func filter(o options) []unix.SockFilter {
	program := []unix.SockFilter{
		loadWord(dataArchitecture),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: architecture, Jt: 1},
		answer(unix.EPERM), // the numbers of another architecture have other meanings
		loadWord(dataNumber),
		{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: foreignNumbers, Jf: 1},
		answer(unix.ENOSYS),
	}
	refuse := func(number uint32, errno unix.Errno) {
		program = append(program, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: number, Jf: 1}, answer(errno))
	}
	for _, number := range forbidden {
		refuse(number, unix.EPERM)
	}
	if o.noLandlock {
		for _, number := range landlock {
			refuse(number, unix.ENOSYS)
		}
	}
	if o.noTrace {
		refuse(unix.SYS_PTRACE, unix.EPERM)
	}
	if o.noListener {
		// Calls without this flag continue, with the number loaded again.
		program = append(program,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_SECCOMP, Jf: 4},
			loadWord(dataArgument2),
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, Jf: 1},
			answer(unix.EBUSY),
			loadWord(dataNumber))
	}
	// The flags of clone3(2) are behind a pointer, so a filter cannot see them. After ENOSYS,
	// libraries use clone(2), whose flags a filter can see.
	refuse(unix.SYS_CLONE3, unix.ENOSYS)
	return append(program,
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_CLONE, Jf: 3},
		loadWord(dataArgument),
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: namespaces, Jf: 1},
		answer(unix.EPERM),
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	)
}

// onlyPidfd returns a filter that refuses pidfd_getfd and allows all else.
func onlyPidfd() []unix.SockFilter {
	return []unix.SockFilter{
		loadWord(dataNumber),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_PIDFD_GETFD, Jf: 1},
		answer(unix.EPERM),
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
}

func loadWord(at uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
}

func answer(errno unix.Errno) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)}
}

// load installs a filter for the calling thread.
func load(program []unix.SockFilter) error {
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	return nil
}
