package enforce

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

// The filters of processes, grouped by what they have in common.
var (
	everyProcess = []Filter{FilterRestricted, FilterEnabled, FilterManaged, FilterManagedUnix, FilterManagedHeld, FilterManagedUnixHeld, FilterLandlock,
		FilterRestrictedSockets, FilterManagedSockets, FilterManagedSocketsHeld}
	withoutSocket = []Filter{FilterRestricted, FilterLandlock, FilterNetwork}
	withSocket    = []Filter{FilterEnabled}
	// supervisedOnline have the network, and a supervisor.
	supervisedOnline = []Filter{"supervised-w-online", "supervised-r-online", "supervised-s-online"}
	// makers are for processes that can make files. FilterLandlock is for policies
	// that let nothing be written.
	makers = []Filter{FilterRestricted, FilterEnabled, FilterManaged, FilterManagedUnix, FilterManagedHeld, FilterManagedUnixHeld,
		FilterRestrictedSockets, FilterManagedSockets, FilterManagedSocketsHeld}
	// namingSockets may connect to the UNIX sockets that a policy names, and have no network.
	namingSockets = []Filter{FilterRestrictedSockets, "supervised-w-sockets", "supervised-r-sockets", "supervised-s-sockets"}
	// managedHere are in a network namespace; supervisedManaged have a supervisor.
	managedHere       = []Filter{FilterManaged, FilterManagedUnix}
	supervisedManaged = []Filter{"supervised-w-managed", "supervised-r-managed", "supervised-s-managed"}
	// heldHere and supervisedHeld are the same with connections that are held.
	heldHere       = []Filter{FilterManagedHeld, FilterManagedUnixHeld, FilterManagedSocketsHeld}
	supervisedHeld = []Filter{"supervised-w-managed-held", "supervised-r-managed-held", "supervised-s-managed-held"}
	// Of supervised processes, those whose Landlock keeps no signals inside, and
	// the others.
	unscoped = []Filter{"supervised-r-unscoped", "supervised-s-unscoped"}
	scoped   = []Filter{"supervised-w-sockets", "supervised-r-sockets", "supervised-s-sockets", "supervised-w", "supervised-r", "supervised-s", "supervised-w-online", "supervised-r-online", "supervised-s-online",
		"supervised-w-managed", "supervised-r-managed", "supervised-s-managed",
		"supervised-w-managed-held", "supervised-r-managed-held", "supervised-s-managed-held"}
)

// wants are single calls and what has to become of them. They were written from
// the documents and not from the tables, so they find mistakes in the tables too.
var wants = []struct {
	filters []Filter
	calls   []string
	args    [6]uint64
	want    verdict
	amd64   bool // not on arm64
}{
	// What every program needs.
	{filters: append(everyProcess, FilterNetwork), calls: []string{
		"read", "write", "openat", "close", "fstat", "mmap", "mprotect", "munmap", "execve", "execveat", "exit_group",
		"wait4", "waitid", "kill", "tgkill", "pipe2", "dup3", "ioctl", "fcntl", "futex", "epoll_pwait", "memfd_create", "mkdirat",
		"unlinkat", "renameat2", "linkat", "truncate", "getrandom", "prctl", "seccomp", "landlock_restrict_self", "setsid", "setpgid",
		"sendmsg", "recvmsg", "recvfrom", "shutdown", "getsockopt", "getsockname", "pidfd_open", "inotify_init1",
		"setuid", "capset", "rseq", "cachestat", "map_shadow_stack", "futex_wait", "futex_wake", "futex_requeue", "mseal",
		"lsm_get_self_attr", "getxattrat", "listxattrat", "file_getattr", "futex_waitv", "memfd_secret", "name_to_handle_at",
	}, want: allow},
	{filters: everyProcess, calls: []string{"clone"}, args: [6]uint64{unix.CLONE_CHILD_CLEARTID | unix.CLONE_CHILD_SETTID | uint64(unix.SIGCHLD)}, want: allow},
	{filters: everyProcess, calls: []string{"clone"}, args: [6]uint64{unix.CLONE_VM | unix.CLONE_VFORK | uint64(unix.SIGCHLD)}, want: allow},
	{filters: everyProcess, calls: []string{"clone"}, args: [6]uint64{0x3d0f00}, want: allow},
	{filters: everyProcess, calls: []string{"unshare"}, args: [6]uint64{unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SYSVSEM}, want: allow},
	{filters: everyProcess, calls: []string{"ioctl"}, args: [6]uint64{0, unix.TIOCGWINSZ}, want: allow},
	{filters: everyProcess, calls: []string{"ioctl"}, args: [6]uint64{0, unix.TIOCINQ}, want: allow},
	{filters: everyProcess, calls: []string{"ioctl"}, args: [6]uint64{0, unix.TIOCSCTTY}, want: allow},

	// Namespaces and mounts.
	{filters: everyProcess, calls: []string{"clone3"}, want: errno(unix.ENOSYS)},
	{filters: everyProcess, calls: []string{"clone", "unshare"}, args: [6]uint64{unix.CLONE_NEWUSER}, want: errno(unix.EPERM)},
	{filters: everyProcess, calls: []string{"clone", "unshare"}, args: [6]uint64{unix.CLONE_NEWNS}, want: errno(unix.EPERM)},
	{filters: everyProcess, calls: []string{"clone", "unshare"}, args: [6]uint64{unix.CLONE_NEWPID}, want: errno(unix.EPERM)},
	{filters: everyProcess, calls: []string{"clone", "unshare"}, args: [6]uint64{unix.CLONE_NEWNET}, want: errno(unix.EPERM)},
	{filters: everyProcess, calls: []string{"clone", "unshare"}, args: [6]uint64{unix.CLONE_NEWIPC}, want: errno(unix.EPERM)},
	{filters: everyProcess, calls: []string{"clone", "unshare"}, args: [6]uint64{unix.CLONE_NEWUTS}, want: errno(unix.EPERM)},
	{filters: everyProcess, calls: []string{"clone", "unshare"}, args: [6]uint64{unix.CLONE_NEWCGROUP}, want: errno(unix.EPERM)},
	{filters: everyProcess, calls: []string{"clone", "unshare"}, args: [6]uint64{1<<40 | unix.CLONE_VM | unix.CLONE_NEWUSER}, want: errno(unix.EPERM)},
	{filters: everyProcess, calls: []string{"unshare"}, args: [6]uint64{unix.CLONE_NEWTIME}, want: errno(unix.EPERM)},
	{filters: everyProcess, calls: []string{
		"setns", "mount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree", "open_tree_attr", "fsopen", "fsconfig",
		"fsmount", "fspick", "mount_setattr",
	}, want: errno(unix.EPERM)},
	{filters: everyProcess, calls: []string{"statmount", "listmount"}, want: errno(unix.ENOSYS)},

	// The kernel and the machine.
	{filters: everyProcess, calls: []string{
		"bpf", "perf_event_open", "userfaultfd", "keyctl", "add_key", "request_key", "open_by_handle_at", "init_module",
		"finit_module", "delete_module", "kexec_load", "kexec_file_load", "swapon", "swapoff", "reboot", "acct", "quotactl",
		"quotactl_fd", "syslog", "settimeofday", "clock_settime", "adjtimex", "clock_adjtime", "sethostname", "setdomainname",
		"vhangup", "nfsservctl", "lookup_dcookie", "fanotify_init", "pidfd_getfd", "process_madvise", "move_pages",
		"migrate_pages", "lsm_set_self_attr", "io_uring_setup", "io_uring_enter", "io_uring_register",
	}, want: errno(unix.EPERM)},
	{filters: everyProcess, calls: []string{"iopl", "ioperm", "uselib"}, want: errno(unix.EPERM), amd64: true},

	// The terminal: only the low half of the request counts.
	{filters: everyProcess, calls: []string{"ioctl"}, args: [6]uint64{0, unix.TIOCSTI}, want: errno(unix.EPERM)},
	{filters: everyProcess, calls: []string{"ioctl"}, args: [6]uint64{0, 1<<32 | unix.TIOCSTI}, want: errno(unix.EPERM)},
	{filters: everyProcess, calls: []string{"ioctl"}, args: [6]uint64{0, 0xdeadbeef_00000000 | unix.TIOCLINUX}, want: errno(unix.EPERM)},
	{filters: everyProcess, calls: []string{"ioctl"}, args: [6]uint64{0, unix.TIOCSETD}, want: errno(unix.EPERM)},
	{filters: everyProcess, calls: []string{"ioctl"}, args: [6]uint64{0, 0x4b49}, want: errno(unix.EPERM)},                          // KDSKBSENT
	{filters: everyProcess, calls: []string{"ioctl"}, args: [6]uint64{0, 1<<32 | 0x4b47}, want: errno(unix.EPERM)},                  // KDSKBENT
	{filters: everyProcess, calls: []string{"ioctl"}, args: [6]uint64{0, 1<<63 | 0x4bfa}, want: errno(unix.EPERM)},                  // KDSKBDIACRUC
	{filters: slices.Concat(everyProcess, scoped, unscoped), calls: []string{"ioctl"}, args: [6]uint64{0, 0x80084b01}, want: allow}, // AMDKFD_IOC_GET_VERSION
	{filters: everyProcess, calls: []string{"ioctl"}, args: [6]uint64{0, 0x4a4b}, want: allow},
	{filters: everyProcess, calls: []string{"ioctl"}, args: [6]uint64{0, 0x4c4b}, want: allow},
	{filters: []Filter{FilterNetwork}, calls: []string{"ioctl"}, args: [6]uint64{0, 0x4b49}, want: allow},
	{filters: []Filter{FilterNetwork}, calls: []string{"ioctl"}, args: [6]uint64{0, unix.TIOCSTI}, want: errno(unix.EPERM)},
	{filters: slices.Concat(withoutSocket, namingSockets, unscoped, supervisedManaged, supervisedHeld), calls: []string{"ioctl"}, args: [6]uint64{0, unix.TUNSETIFF}, want: errno(unix.EPERM)},
	{filters: supervisedOnline, calls: []string{"ioctl"}, args: [6]uint64{0, unix.TUNSETIFF}, want: allow},
	{filters: []Filter{FilterNetwork}, calls: []string{"ioctl"}, args: [6]uint64{0, 1<<32 | unix.TIOCLINUX}, want: errno(unix.EPERM)},
	{filters: []Filter{FilterNetwork}, calls: []string{"ioctl"}, args: [6]uint64{0, unix.TIOCSCTTY}, want: allow},

	// personality.
	{filters: everyProcess, calls: []string{"personality"}, args: [6]uint64{0}, want: allow},
	{filters: everyProcess, calls: []string{"personality"}, args: [6]uint64{0x8}, want: allow},
	{filters: everyProcess, calls: []string{"personality"}, args: [6]uint64{0x20000}, want: allow},
	{filters: everyProcess, calls: []string{"personality"}, args: [6]uint64{0x20008}, want: allow},
	{filters: everyProcess, calls: []string{"personality"}, args: [6]uint64{0xffffffff}, want: allow},
	{filters: everyProcess, calls: []string{"personality"}, args: [6]uint64{0x0400000}, want: errno(unix.EPERM)}, // READ_IMPLIES_EXEC
	{filters: everyProcess, calls: []string{"personality"}, args: [6]uint64{0x80400000}, want: errno(unix.EPERM)},
	{filters: withSocket, calls: []string{"personality"}, args: [6]uint64{0x40000}, want: allow},
	{filters: []Filter{FilterRestricted, FilterLandlock}, calls: []string{"personality"}, args: [6]uint64{0x40000}, want: errno(unix.EPERM)},

	// Restricted network.
	{filters: withoutSocket, calls: []string{
		"connect", "accept", "accept4", "bind", "listen", "sendto", "sendmmsg", "recvmmsg", "setsockopt",
		"ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "io_uring_setup", "io_uring_enter", "io_uring_register",
	}, want: errno(unix.EPERM)},
	{filters: withoutSocket, calls: []string{"socket", "socketpair"}, args: [6]uint64{unix.AF_INET, unix.SOCK_STREAM}, want: errno(unix.EPERM)},
	{filters: withoutSocket, calls: []string{"socket", "socketpair"}, args: [6]uint64{unix.AF_INET6, unix.SOCK_DGRAM}, want: errno(unix.EPERM)},
	{filters: withoutSocket, calls: []string{"socket", "socketpair"}, args: [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW}, want: errno(unix.EPERM)},
	{filters: withoutSocket, calls: []string{"socket", "socketpair"}, args: [6]uint64{unix.AF_PACKET, unix.SOCK_RAW}, want: errno(unix.EPERM)},
	{filters: withoutSocket, calls: []string{"socket", "socketpair"}, args: [6]uint64{unix.AF_VSOCK, unix.SOCK_STREAM}, want: errno(unix.EPERM)},
	{filters: withoutSocket, calls: []string{"socket", "socketpair"}, args: [6]uint64{unix.AF_UNSPEC, unix.SOCK_STREAM}, want: errno(unix.EPERM)},
	{filters: withoutSocket, calls: []string{"socket", "socketpair"}, args: [6]uint64{unix.AF_UNIX, unix.SOCK_STREAM}, want: allow},
	{filters: withoutSocket, calls: []string{"socket", "socketpair"}, args: [6]uint64{unix.AF_UNIX, unix.SOCK_STREAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK}, want: allow},
	{filters: withoutSocket, calls: []string{"socket", "socketpair"}, args: [6]uint64{unix.AF_UNIX, unix.SOCK_SEQPACKET | unix.SOCK_CLOEXEC}, want: allow},
	{filters: append(withoutSocket, withSocket...), calls: []string{"socket", "socketpair"}, args: [6]uint64{unix.AF_UNIX, unix.SOCK_DGRAM}, want: errno(unix.EPERM)},
	{filters: append(withoutSocket, withSocket...), calls: []string{"socket", "socketpair"}, args: [6]uint64{unix.AF_UNIX, unix.SOCK_DGRAM | unix.SOCK_CLOEXEC}, want: errno(unix.EPERM)},
	{filters: append(withoutSocket, withSocket...), calls: []string{"socket", "socketpair"}, args: [6]uint64{unix.AF_UNIX, unix.SOCK_RAW}, want: errno(unix.EPERM)},
	{filters: append(withoutSocket, withSocket...), calls: []string{"socket"}, args: [6]uint64{1<<32 | unix.AF_UNIX, 1<<32 | unix.SOCK_DGRAM}, want: errno(unix.EPERM)},

	// Without a network, but with sockets that the policy names.
	{filters: namingSockets, calls: []string{"connect"}, want: notify},
	{filters: []Filter{FilterRestrictedSockets}, calls: []string{"socket"}, args: [6]uint64{unix.AF_UNIX, unix.SOCK_STREAM | unix.SOCK_CLOEXEC}, want: allow},
	{filters: namingSockets[1:], calls: []string{"socket"}, args: [6]uint64{1<<32 | unix.AF_UNIX, 1<<32 | unix.SOCK_SEQPACKET}, want: notify},
	{filters: namingSockets, calls: []string{"socketpair"}, args: [6]uint64{unix.AF_UNIX, unix.SOCK_STREAM}, want: allow},
	{filters: slices.Concat(namingSockets, []Filter{FilterManagedSockets, FilterManagedSocketsHeld}), calls: []string{"socket", "socketpair"}, args: [6]uint64{unix.AF_UNIX, unix.SOCK_DGRAM}, want: errno(unix.EPERM)},
	{filters: slices.Concat(namingSockets, []Filter{FilterManagedSockets, FilterManagedSocketsHeld}), calls: []string{"socket", "socketpair"}, args: [6]uint64{unix.AF_UNIX, unix.SOCK_RAW}, want: errno(unix.EPERM)},
	{filters: slices.Concat(namingSockets, []Filter{FilterManagedSockets, FilterManagedSocketsHeld}), calls: []string{"socket"}, args: [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW}, want: errno(unix.EPERM)},
	{filters: slices.Concat(namingSockets, []Filter{FilterManagedSockets, FilterManagedSocketsHeld}), calls: []string{"ptrace", "pidfd_getfd", "setns", "io_uring_setup"}, want: errno(unix.EPERM)},
	{filters: namingSockets, calls: []string{"socket", "socketpair"}, args: [6]uint64{unix.AF_INET, unix.SOCK_STREAM}, want: errno(unix.EPERM)},
	{filters: namingSockets, calls: []string{"accept4", "bind", "listen", "sendmmsg", "recvmmsg"}, want: errno(unix.EPERM)},
	{filters: namingSockets, calls: []string{"sendto"}, args: [6]uint64{3, 0, 0, 0, 1 << 32}, want: errno(unix.EPERM)},
	{filters: namingSockets, calls: []string{"sendto"}, args: [6]uint64{3, 0, 0, 0, 0, 16}, want: allow},
	{filters: namingSockets, calls: []string{"setsockopt"}, args: [6]uint64{3, unix.SOL_SOCKET, unix.SO_PASSCRED}, want: allow},
	{filters: namingSockets, calls: []string{"setsockopt"}, args: [6]uint64{3, unix.IPPROTO_IP, unix.IP_OPTIONS}, want: errno(unix.EPERM)},
	{filters: []Filter{FilterManagedSockets}, calls: []string{"connect"}, want: notify},
	{filters: []Filter{FilterManagedSockets, FilterManagedSocketsHeld}, calls: []string{"socket"}, args: [6]uint64{unix.AF_UNIX, unix.SOCK_STREAM}, want: allow},

	// Enabled network.
	{filters: withSocket, calls: []string{
		"accept4", "listen", "sendto", "sendmmsg", "recvmmsg", "setsockopt", "ptrace", "process_vm_readv", "kcmp",
	}, want: allow},
	{filters: withSocket, calls: []string{"socket", "socketpair"}, args: [6]uint64{unix.AF_VSOCK, unix.SOCK_STREAM}, want: errno(unix.EPERM)},
	{filters: withSocket, calls: []string{"socket", "socketpair"}, args: [6]uint64{1<<32 | unix.AF_VSOCK, unix.SOCK_STREAM}, want: errno(unix.EPERM)},
	{filters: withSocket, calls: []string{"socket"}, args: [6]uint64{unix.AF_INET, unix.SOCK_DGRAM}, want: allow},
	{filters: withSocket, calls: []string{"socket"}, args: [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW}, want: allow},
	{filters: withSocket, calls: []string{"socket", "socketpair"}, args: [6]uint64{unix.AF_UNIX, unix.SOCK_STREAM}, want: allow},
	{filters: []Filter{FilterEnabled}, calls: []string{"bind", "connect"}, want: notify},
	// What names a peer is left to a supervisor, where there is one.
	{filters: supervisedOnline, calls: []string{"socket", "bind", "connect", "listen", "sendmsg", "sendmmsg"}, want: notify},
	{filters: supervisedOnline, calls: []string{"sendto"}, args: [6]uint64{3, 0, 0, 0, 1}, want: notify},
	{filters: supervisedOnline, calls: []string{"sendto"}, args: [6]uint64{3, 0, 0, 0, 1 << 32}, want: notify},
	{filters: supervisedOnline, calls: []string{"sendto"}, args: [6]uint64{3, 0, 0, 0, 0, 16}, want: allow},
	{filters: supervisedOnline, calls: []string{"accept4", "recvmsg", "setsockopt", "getsockopt", "getsockname", "shutdown"}, want: allow},
	{filters: supervisedOnline, calls: []string{"socket"}, args: [6]uint64{unix.AF_UNIX, unix.SOCK_DGRAM | unix.SOCK_CLOEXEC}, want: errno(unix.EPERM)},
	{filters: supervisedOnline, calls: []string{"socket", "socketpair"}, args: [6]uint64{unix.AF_VSOCK, unix.SOCK_STREAM}, want: errno(unix.EPERM)},
	{filters: supervisedOnline, calls: []string{"socketpair"}, args: [6]uint64{unix.AF_UNIX, unix.SOCK_STREAM}, want: allow},
	{filters: supervisedOnline, calls: []string{"sendto", "sendmmsg"}, args: [6]uint64{3, 0, 0, unix.MSG_FASTOPEN, 1}, want: errno(unix.EOPNOTSUPP)},
	{filters: supervisedOnline, calls: []string{"sendmsg"}, args: [6]uint64{3, 0, unix.MSG_FASTOPEN}, want: errno(unix.EOPNOTSUPP)},
	{filters: supervisedOnline, calls: []string{"pidfd_getfd", "io_uring_setup", "setns"}, want: errno(unix.EPERM)},
	{filters: []Filter{"supervised-w-online"}, calls: []string{"ptrace", "process_vm_writev"}, want: allow},
	{filters: []Filter{"supervised-r-online", "supervised-s-online"}, calls: []string{"ptrace", "process_vm_readv", "process_vm_writev"}, want: errno(unix.EPERM)},
	// Managed network.
	{filters: managedHere, calls: []string{"connect", "bind", "listen", "accept4", "sendto", "sendmsg", "sendmmsg", "setsockopt"}, want: allow},
	{filters: managedHere, calls: []string{"socket"}, args: [6]uint64{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_CLOEXEC}, want: allow},
	{filters: managedHere, calls: []string{"socket"}, args: [6]uint64{unix.AF_INET6, unix.SOCK_DGRAM}, want: allow},
	{filters: managedHere, calls: []string{"socket"}, args: [6]uint64{1<<32 | unix.AF_INET, 1<<32 | unix.SOCK_RAW | unix.SOCK_CLOEXEC}, want: errno(unix.EPERM)},
	{filters: append(managedHere, supervisedManaged...), calls: []string{"socket"}, args: [6]uint64{unix.AF_INET6, unix.SOCK_RAW}, want: errno(unix.EPERM)},
	{filters: append(managedHere, supervisedManaged...), calls: []string{"socket", "socketpair"}, args: [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW}, want: errno(unix.EPERM)},
	{filters: append(managedHere, supervisedManaged...), calls: []string{"socket", "socketpair"}, args: [6]uint64{unix.AF_PACKET, unix.SOCK_RAW}, want: errno(unix.EPERM)},
	{filters: append(managedHere, supervisedManaged...), calls: []string{"socket", "socketpair"}, args: [6]uint64{unix.AF_VSOCK, unix.SOCK_STREAM}, want: errno(unix.EPERM)},
	{filters: append(managedHere, supervisedManaged...), calls: []string{"socket", "socketpair"}, args: [6]uint64{unix.AF_SMC, unix.SOCK_STREAM}, want: errno(unix.EPERM)},
	{filters: append(managedHere, supervisedManaged...), calls: []string{"socketpair"}, args: [6]uint64{unix.AF_UNIX, unix.SOCK_STREAM | unix.SOCK_CLOEXEC}, want: allow},
	{filters: append([]Filter{FilterManaged}, supervisedManaged...), calls: []string{"socketpair"}, args: [6]uint64{unix.AF_UNIX, unix.SOCK_DGRAM}, want: errno(unix.EPERM)},
	{filters: append([]Filter{FilterManaged}, supervisedManaged...), calls: []string{"socket"}, args: [6]uint64{unix.AF_UNIX, unix.SOCK_DGRAM}, want: errno(unix.EPERM)},
	{filters: []Filter{FilterManaged}, calls: []string{"socket"}, args: [6]uint64{unix.AF_UNIX, unix.SOCK_STREAM}, want: errno(unix.EPERM)},
	{filters: []Filter{FilterManagedUnix}, calls: []string{"socket", "socketpair"}, args: [6]uint64{unix.AF_UNIX, unix.SOCK_DGRAM}, want: allow},
	{filters: append(managedHere, supervisedManaged...), calls: []string{
		"ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd", "setns", "io_uring_setup", "io_uring_enter", "bpf",
	}, want: errno(unix.EPERM)},
	{filters: supervisedManaged, calls: []string{"connect", "bind", "listen"}, want: notify},
	{filters: supervisedManaged, calls: []string{"socket"}, args: [6]uint64{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_NONBLOCK, unix.IPPROTO_TCP}, want: notify},
	{filters: supervisedManaged, calls: []string{"socket"}, args: [6]uint64{1<<32 | unix.AF_INET6, unix.SOCK_STREAM, 1 << 32}, want: notify},
	{filters: supervisedManaged, calls: []string{"socket"}, args: [6]uint64{unix.AF_UNIX, unix.SOCK_SEQPACKET}, want: notify},
	{filters: supervisedManaged, calls: []string{"socket"}, args: [6]uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}, want: errno(unix.EPERM)},
	{filters: supervisedManaged, calls: []string{"socket"}, args: [6]uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, want: errno(unix.EPERM)},
	{filters: supervisedManaged, calls: []string{"socket"}, args: [6]uint64{unix.AF_INET, unix.SOCK_SEQPACKET}, want: errno(unix.EPERM)},
	{filters: supervisedManaged, calls: []string{"socket"}, args: [6]uint64{unix.AF_INET6, unix.SOCK_DGRAM}, want: errno(unix.EPERM)},
	{filters: supervisedManaged, calls: []string{"sendto", "sendmsg", "sendmmsg", "accept4", "recvmsg", "shutdown"}, want: allow},
	{filters: supervisedManaged, calls: []string{"sendto", "sendmmsg"}, args: [6]uint64{3, 0, 0, unix.MSG_FASTOPEN, 1}, want: errno(unix.EOPNOTSUPP)},
	{filters: supervisedManaged, calls: []string{"sendmsg"}, args: [6]uint64{3, 0, unix.MSG_FASTOPEN}, want: errno(unix.EOPNOTSUPP)},
	{filters: supervisedManaged, calls: []string{"setsockopt"}, args: [6]uint64{3, 1<<32 | unix.IPPROTO_IP, 1<<32 | unix.IP_OPTIONS}, want: errno(unix.EPERM)},
	{filters: supervisedManaged, calls: []string{"setsockopt"}, args: [6]uint64{3, unix.IPPROTO_TCP, unix.TCP_NODELAY}, want: allow},
	{filters: slices.Concat(managedHere, supervisedManaged, withSocket, withoutSocket), calls: []string{"getpeername"}, want: allow},
	// Managed network with held connections.
	{filters: heldHere, calls: []string{"connect", "getpeername"}, want: notify},
	{filters: heldHere, calls: []string{"bind", "listen", "accept4", "sendto", "sendmsg", "sendmmsg", "recvmsg", "setsockopt", "getsockname"}, want: allow},
	{filters: slices.Concat(heldHere, supervisedHeld), calls: []string{"getsockopt"}, args: [6]uint64{3, unix.SOL_SOCKET, unix.SO_ERROR}, want: notify},
	{filters: slices.Concat(heldHere, supervisedHeld), calls: []string{"getsockopt"}, args: [6]uint64{3, 1<<32 | unix.SOL_SOCKET, 1<<32 | unix.SO_ERROR}, want: notify},
	{filters: slices.Concat(heldHere, supervisedHeld), calls: []string{"getsockopt"}, args: [6]uint64{3, unix.SOL_SOCKET, unix.SO_TYPE}, want: allow},
	{filters: slices.Concat(heldHere, supervisedHeld), calls: []string{"getsockopt"}, args: [6]uint64{3, unix.IPPROTO_TCP, unix.SO_ERROR}, want: allow},
	{filters: slices.Concat(heldHere, supervisedHeld), calls: []string{"socket"}, args: [6]uint64{unix.AF_INET6, unix.SOCK_STREAM, 1<<32 | unix.IPPROTO_MPTCP}, want: errno(unix.EPROTONOSUPPORT)},
	{filters: slices.Concat(heldHere, supervisedHeld), calls: []string{"sendto", "sendmmsg"}, args: [6]uint64{3, 0, 0, unix.MSG_FASTOPEN, 1}, want: errno(unix.EOPNOTSUPP)},
	{filters: slices.Concat(heldHere, supervisedHeld), calls: []string{"socket"}, args: [6]uint64{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}, want: errno(unix.EPERM)},
	{filters: slices.Concat(heldHere, supervisedHeld), calls: []string{"socket", "socketpair"}, args: [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW}, want: errno(unix.EPERM)},
	{filters: slices.Concat(heldHere, supervisedHeld), calls: []string{"pidfd_getfd", "setns", "io_uring_setup", "ptrace"}, want: errno(unix.EPERM)},
	{filters: heldHere, calls: []string{"socket"}, args: [6]uint64{unix.AF_INET, unix.SOCK_DGRAM}, want: allow},
	{filters: supervisedHeld, calls: []string{"connect", "bind", "listen", "sendmsg", "sendmmsg", "recvmsg", "recvmmsg", "getpeername", "getsockname"}, want: notify},
	{filters: supervisedHeld, calls: []string{"sendto", "recvfrom"}, args: [6]uint64{3, 0, 0, 0, 1 << 32}, want: notify},
	{filters: supervisedHeld, calls: []string{"sendto", "recvfrom"}, args: [6]uint64{3, 0, 0, 0, 0, 1}, want: allow},
	{filters: supervisedHeld, calls: []string{"socket"}, args: [6]uint64{unix.AF_INET, unix.SOCK_DGRAM | unix.SOCK_CLOEXEC, unix.IPPROTO_UDP}, want: notify},
	{filters: supervisedHeld, calls: []string{"socket"}, args: [6]uint64{1<<32 | unix.AF_INET6, 1<<32 | unix.SOCK_DGRAM}, want: notify},
	{filters: supervisedHeld, calls: []string{"socket"}, args: [6]uint64{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP}, want: errno(unix.EPERM)},
	{filters: supervisedHeld, calls: []string{"socket"}, args: [6]uint64{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE}, want: errno(unix.EPERM)},
	{filters: supervisedHeld, calls: []string{"socket", "socketpair"}, args: [6]uint64{unix.AF_UNIX, unix.SOCK_DGRAM}, want: errno(unix.EPERM)},
	{filters: supervisedHeld, calls: []string{"setsockopt"}, args: [6]uint64{3, unix.IPPROTO_IP, unix.IP_OPTIONS}, want: errno(unix.EPERM)},
	{filters: supervisedHeld, calls: []string{"setsockopt"}, args: [6]uint64{3, unix.IPPROTO_IP, unix.IP_RECVERR}, want: notify},
	{filters: supervisedHeld, calls: []string{"setsockopt"}, args: [6]uint64{3, unix.SOL_SOCKET, unix.SO_REUSEPORT}, want: notify},
	{filters: supervisedHeld, calls: []string{"setsockopt"}, args: [6]uint64{3, unix.IPPROTO_TCP, unix.TCP_NODELAY}, want: allow},
	// TCP Fast Open names its peer without connect.
	{filters: withSocket, calls: []string{"sendto", "sendmmsg"}, args: [6]uint64{3, 0, 0, unix.MSG_FASTOPEN}, want: errno(unix.EOPNOTSUPP)},
	{filters: withSocket, calls: []string{"sendto", "sendmmsg"}, args: [6]uint64{3, 0, 0, 1<<32 | unix.MSG_FASTOPEN | unix.MSG_NOSIGNAL}, want: errno(unix.EOPNOTSUPP)},
	{filters: withSocket, calls: []string{"sendto", "sendmmsg"}, args: [6]uint64{3, 0, 0, unix.MSG_NOSIGNAL | unix.MSG_ZEROCOPY}, want: allow},
	{filters: withSocket, calls: []string{"sendmsg"}, args: [6]uint64{3, 0, unix.MSG_FASTOPEN}, want: errno(unix.EOPNOTSUPP)},
	{filters: withSocket, calls: []string{"sendmsg"}, args: [6]uint64{3, 0, unix.MSG_NOSIGNAL, unix.MSG_FASTOPEN}, want: allow},

	// The walk of the helper asks whose a link is, where fs.protected_symlinks is set.
	{filters: []Filter{FilterHelper}, calls: []string{"geteuid", "readlinkat", "newfstatat"}, want: allow},

	// Only the network.

	// Signals, where Landlock does not keep them inside.
	{filters: unscoped, calls: []string{"kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal"}, want: notify},
	{filters: scoped, calls: []string{"kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal"}, want: allow},
	{filters: unscoped, calls: []string{"fcntl"}, args: [6]uint64{0, unix.F_SETOWN}, want: errno(unix.EPERM)},
	{filters: unscoped, calls: []string{"fcntl"}, args: [6]uint64{0, 1<<32 | unix.F_SETOWN_EX}, want: errno(unix.EPERM)},
	{filters: unscoped, calls: []string{"fcntl"}, args: [6]uint64{0, unix.F_SETFL, unix.O_ASYNC | unix.O_NONBLOCK}, want: errno(unix.EPERM)},
	{filters: unscoped, calls: []string{"fcntl"}, args: [6]uint64{0, unix.F_SETFL, unix.O_NONBLOCK}, want: allow},
	{filters: unscoped, calls: []string{"fcntl"}, args: [6]uint64{0, unix.F_GETFL, unix.O_ASYNC}, want: allow},
	{filters: unscoped, calls: []string{"ioctl"}, args: [6]uint64{0, 0x5452}, want: errno(unix.EPERM)},         // FIOASYNC
	{filters: unscoped, calls: []string{"ioctl"}, args: [6]uint64{0, 1<<32 | 0x8901}, want: errno(unix.EPERM)}, // FIOSETOWN
	{filters: unscoped, calls: []string{"ioctl"}, args: [6]uint64{0, 0x8902}, want: errno(unix.EPERM)},         // SIOCSPGRP
	{filters: unscoped, calls: []string{"ioctl"}, args: [6]uint64{0, unix.TIOCGWINSZ}, want: allow},
	{filters: unscoped, calls: []string{"connect", "bind"}, want: errno(unix.EPERM)}, // abstract names among them

	{filters: []Filter{FilterNetwork}, calls: []string{"mount", "clone3", "keyctl", "fchmodat2", "statmount", "personality", "openat2"}, want: allow},
	{filters: []Filter{FilterNetwork}, calls: []string{"pidfd_getfd", "process_madvise", "setns", "bpf", "request_key"}, want: errno(unix.EPERM)},
	{filters: []Filter{FilterNetwork}, calls: []string{"clone", "unshare"}, args: [6]uint64{unix.CLONE_NEWUSER}, want: allow},

	// Landlock alone.
	{filters: []Filter{FilterLandlock}, calls: []string{
		"fchmod", "fchmodat", "fchmodat2", "fchown", "fchownat", "utimensat", "setxattr", "lsetxattr", "fsetxattr", "setxattrat",
		"removexattr", "lremovexattr", "fremovexattr", "removexattrat", "file_setattr",
	}, want: errno(unix.EROFS)},
	{filters: []Filter{FilterLandlock}, calls: []string{"chmod", "chown", "lchown", "utime", "utimes", "futimesat"}, want: errno(unix.EROFS), amd64: true},
	{filters: []Filter{FilterRestricted, FilterEnabled, FilterNetwork}, calls: []string{"fchmod", "fchownat", "utimensat", "setxattr", "shmget", "mq_open", "semget"}, want: allow},
	{filters: []Filter{FilterLandlock}, calls: []string{"openat2"}, want: allow},
	{filters: []Filter{FilterLandlock}, calls: []string{"shmget", "shmat", "msgget", "msgsnd", "semget", "semop", "mq_open", "mq_unlink"}, want: errno(unix.EPERM)},
	{filters: []Filter{FilterLandlock}, calls: []string{"ioctl"}, args: [6]uint64{0, unix.FS_IOC_SETFLAGS}, want: errno(unix.EROFS)},
	{filters: []Filter{FilterLandlock}, calls: []string{"ioctl"}, args: [6]uint64{0, 1<<33 | unix.FS_IOC_SETFLAGS}, want: errno(unix.EROFS)},
	{filters: []Filter{FilterLandlock}, calls: []string{"ioctl"}, args: [6]uint64{0, 0x401c5820}, want: errno(unix.EROFS)}, // FS_IOC_FSSETXATTR
	{filters: []Filter{FilterLandlock}, calls: []string{"ioctl"}, args: [6]uint64{0, unix.FS_IOC_ENABLE_VERITY}, want: errno(unix.EROFS)},
	{filters: []Filter{FilterLandlock}, calls: []string{"ioctl"}, args: [6]uint64{0, unix.FS_IOC_GETFLAGS}, want: allow},
	{filters: []Filter{FilterLandlock}, calls: []string{"ioctl"}, args: [6]uint64{0, 0x801c581f}, want: allow}, // FS_IOC_FSGETXATTR

	// Requests to file systems that copy what a mount hides, or close to others
	// what they may open.
	{filters: everyProcess, calls: []string{"ioctl"}, args: [6]uint64{0, 0x50009401}, want: errno(unix.EPERM)}, // BTRFS_IOC_SNAP_CREATE
	{filters: everyProcess, calls: []string{"ioctl"}, args: [6]uint64{0, 0x50009417}, want: errno(unix.EPERM)}, // BTRFS_IOC_SNAP_CREATE_V2
	{filters: everyProcess, calls: []string{"ioctl"}, args: [6]uint64{0, 0xabcd_00000000 | 0x50009417}, want: errno(unix.EPERM)},
	{filters: everyProcess, calls: []string{"ioctl"}, args: [6]uint64{0, 0x5000940e}, want: errno(unix.EPERM)}, // BTRFS_IOC_SUBVOL_CREATE
	{filters: everyProcess, calls: []string{"ioctl"}, args: [6]uint64{0, 0x50009418}, want: errno(unix.EPERM)}, // BTRFS_IOC_SUBVOL_CREATE_V2
	{filters: everyProcess, calls: []string{"ioctl"}, args: [6]uint64{0, 0x5000943f}, want: errno(unix.EPERM)}, // BTRFS_IOC_SNAP_DESTROY_V2
	{filters: everyProcess, calls: []string{"ioctl"}, args: [6]uint64{0, 0x4008941a}, want: errno(unix.EPERM)}, // BTRFS_IOC_SUBVOL_SETFLAGS
	{filters: everyProcess, calls: []string{"ioctl"}, args: [6]uint64{0, 0xd0009412}, want: errno(unix.EPERM)}, // BTRFS_IOC_INO_LOOKUP
	{filters: everyProcess, calls: []string{"ioctl"}, args: [6]uint64{0, 0x4020bc10}, want: errno(unix.EPERM)}, // BCH_IOCTL_SUBVOLUME_CREATE
	{filters: everyProcess, calls: []string{"ioctl"}, args: [6]uint64{0, 0x4020bc11}, want: errno(unix.EPERM)}, // BCH_IOCTL_SUBVOLUME_DESTROY
	{filters: everyProcess, calls: []string{"ioctl"}, args: [6]uint64{0, 0x8008bc40}, want: errno(unix.EPERM)}, // BCHFS_IOC_REINHERIT_ATTRS
	{filters: everyProcess, calls: []string{"ioctl"}, args: [6]uint64{0, unix.FICLONE}, want: allow},
	{filters: everyProcess, calls: []string{"ioctl"}, args: [6]uint64{0, unix.FICLONERANGE}, want: allow},
	{filters: everyProcess, calls: []string{"ioctl"}, args: [6]uint64{0, unix.FIDEDUPERANGE}, want: allow},
	{filters: everyProcess, calls: []string{"ioctl"}, args: [6]uint64{0, 0x40049408}, want: errno(unix.EPERM)}, // beside FICLONE
	{filters: []Filter{FilterRestricted, FilterEnabled}, calls: []string{"ioctl"}, args: [6]uint64{0, unix.FS_IOC_REMOVE_ENCRYPTION_KEY}, want: errno(unix.EPERM)},
	{filters: []Filter{FilterRestricted, FilterEnabled}, calls: []string{"ioctl"}, args: [6]uint64{0, unix.FS_IOC_ADD_ENCRYPTION_KEY}, want: errno(unix.EPERM)},
	{filters: []Filter{FilterRestricted, FilterEnabled}, calls: []string{"ioctl"}, args: [6]uint64{0, unix.FS_IOC_SETFLAGS}, want: allow},
	{filters: []Filter{FilterNetwork}, calls: []string{"ioctl"}, args: [6]uint64{0, 0x50009417}, want: allow},

	// Leases: whoever opens the file is held up.
	{filters: everyProcess, calls: []string{"fcntl"}, args: [6]uint64{0, unix.F_SETLEASE, unix.F_WRLCK}, want: errno(unix.EPERM)},
	{filters: everyProcess, calls: []string{"fcntl"}, args: [6]uint64{0, 1<<32 | unix.F_SETLEASE, unix.F_UNLCK}, want: errno(unix.EPERM)},
	{filters: everyProcess, calls: []string{"fcntl"}, args: [6]uint64{0, unix.F_SETDELEG}, want: errno(unix.EPERM)},
	{filters: everyProcess, calls: []string{"fcntl"}, args: [6]uint64{0, unix.F_GETLEASE}, want: allow},
	{filters: everyProcess, calls: []string{"fcntl"}, args: [6]uint64{0, unix.F_OFD_SETLK}, want: allow},
	{filters: everyProcess, calls: []string{"fcntl"}, args: [6]uint64{0, unix.F_DUPFD_CLOEXEC, 1024}, want: allow},

	// Modes with which a file gives the ids of its owner to whoever executes it.
	{filters: makers, calls: []string{"fchmod"}, args: [6]uint64{3, 0o4755}, want: errno(unix.EPERM)},
	{filters: makers, calls: []string{"fchmod"}, args: [6]uint64{3, 0o2755}, want: errno(unix.EPERM)},
	{filters: makers, calls: []string{"fchmod"}, args: [6]uint64{3, 0o1777}, want: allow},
	{filters: makers, calls: []string{"fchmod"}, args: [6]uint64{0o6000, 0o755}, want: allow},
	{filters: makers, calls: []string{"fchmodat", "fchmodat2", "mknodat"}, args: [6]uint64{3, 0o6000, 0o104755}, want: errno(unix.EPERM)},
	{filters: makers, calls: []string{"fchmodat", "fchmodat2", "mknodat"}, args: [6]uint64{3, 0o6000, 0o102644}, want: errno(unix.EPERM)},
	{filters: makers, calls: []string{"fchmodat", "fchmodat2", "mknodat"}, args: [6]uint64{3, 0o6000, 0o100755}, want: allow},
	{filters: makers, calls: []string{"openat"}, args: [6]uint64{3, 0, unix.O_CREAT | unix.O_WRONLY, 0o4755}, want: errno(unix.EPERM)},
	{filters: makers, calls: []string{"openat"}, args: [6]uint64{3, 0, unix.O_CREAT | unix.O_WRONLY | 1<<32, 0o2755}, want: errno(unix.EPERM)},
	{filters: makers, calls: []string{"openat"}, args: [6]uint64{3, 0, unix.O_TMPFILE | unix.O_RDWR, 0o4700}, want: errno(unix.EPERM)},
	{filters: makers, calls: []string{"openat"}, args: [6]uint64{3, 0, unix.O_CREAT | unix.O_WRONLY, 0o1666}, want: allow},
	{filters: makers, calls: []string{"openat"}, args: [6]uint64{3, 0, unix.O_RDONLY | unix.O_DIRECTORY, 0xffffffff}, want: allow}, // makes no file, so the mode is ignored
	{filters: makers, calls: []string{"openat2"}, want: errno(unix.ENOSYS)},
	{filters: makers, calls: []string{"mkdirat"}, args: [6]uint64{3, 0, 0o2755}, want: allow}, // the kernel ignores the bit
	{filters: makers, calls: []string{"chmod", "creat", "mknod"}, args: [6]uint64{0, 0o4755}, want: errno(unix.EPERM), amd64: true},
	{filters: makers, calls: []string{"chmod", "creat", "mknod"}, args: [6]uint64{0, 0o2755}, want: errno(unix.EPERM), amd64: true},
	{filters: makers, calls: []string{"chmod", "creat", "mknod"}, args: [6]uint64{0, 0o755}, want: allow, amd64: true},
	{filters: makers, calls: []string{"open"}, args: [6]uint64{0, unix.O_CREAT | unix.O_RDWR, 0o4755}, want: errno(unix.EPERM), amd64: true},
	{filters: makers, calls: []string{"open"}, args: [6]uint64{0, unix.O_TMPFILE, 0o2000}, want: errno(unix.EPERM), amd64: true},
	{filters: makers, calls: []string{"open"}, args: [6]uint64{0, unix.O_RDWR, 0o4755}, want: allow, amd64: true},
	{filters: []Filter{FilterNetwork}, calls: []string{"fchmod"}, args: [6]uint64{3, 0o4755}, want: allow},

	// Scheduling and limits of other processes.
	{filters: everyProcess, calls: []string{"prlimit64"}, args: [6]uint64{1234, unix.RLIMIT_CPU, 0x7f0012345678}, want: errno(unix.EPERM)},
	{filters: everyProcess, calls: []string{"prlimit64"}, args: [6]uint64{1234, unix.RLIMIT_CPU, 0x7f00_00000000}, want: errno(unix.EPERM)},
	{filters: everyProcess, calls: []string{"prlimit64"}, args: [6]uint64{1234, unix.RLIMIT_CPU, 0, 0x7f0012345678}, want: allow},
	{filters: everyProcess, calls: []string{"prlimit64"}, args: [6]uint64{0, unix.RLIMIT_CPU, 0x7f0012345678}, want: allow},
	{filters: everyProcess, calls: []string{"sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"}, args: [6]uint64{1}, want: errno(unix.EPERM)},
	{filters: everyProcess, calls: []string{"sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"}, args: [6]uint64{1 << 32}, want: allow},
	{filters: everyProcess, calls: []string{"setpriority"}, args: [6]uint64{unix.PRIO_USER}, want: errno(unix.EPERM)},
	{filters: everyProcess, calls: []string{"setpriority"}, args: [6]uint64{unix.PRIO_PROCESS, 7}, want: errno(unix.EPERM)},
	{filters: everyProcess, calls: []string{"setpriority"}, args: [6]uint64{unix.PRIO_PROCESS, 0}, want: allow},
	{filters: everyProcess, calls: []string{"ioprio_set"}, args: [6]uint64{1, 0}, want: allow},
	{filters: everyProcess, calls: []string{"ioprio_set"}, args: [6]uint64{3, 0}, want: errno(unix.EPERM)},
	{filters: []Filter{FilterNetwork}, calls: []string{"prlimit64", "sched_setaffinity", "setpriority"}, args: [6]uint64{1234, 1, 1}, want: allow},

	// What can be learnt of paths without opening them.
	{filters: []Filter{FilterHiddenPaths}, calls: []string{
		"getxattr", "lgetxattr", "listxattr", "llistxattr", "getxattrat", "listxattrat", "inotify_add_watch", "name_to_handle_at",
	}, want: errno(unix.EACCES)},
	{filters: []Filter{FilterHiddenPaths}, calls: []string{"fgetxattr", "flistxattr", "statx", "readlinkat", "openat"}, want: allow},

	// The helper.
	{filters: []Filter{FilterHelper}, calls: []string{
		"read", "write", "openat2", "openat", "close", "fstat", "statx", "newfstatat", "fstatfs", "getdents64", "readlinkat",
		"mkdirat", "unlinkat", "renameat2", "linkat", "symlinkat", "copy_file_range", "ftruncate", "fchmod", "lseek",
		"sendmsg", "recvmsg", "munmap", "madvise", "futex", "epoll_pwait", "eventfd2", "nanosleep", "rt_sigreturn", "exit_group",
	}, want: allow},
	{filters: []Filter{FilterHelper}, calls: []string{
		"execve", "execveat", "socket", "socketpair", "connect", "bind", "sendto", "recvfrom", "ptrace", "mount", "unshare", "setns",
		"ioctl", "kill", "tkill", "rt_sigqueueinfo", "pidfd_send_signal", "pidfd_open", "clone", "chroot", "fchown", "fchownat", "setxattr", "mknodat",
		"truncate", "memfd_create", "bpf", "io_uring_setup", "setuid", "capset", "prlimit64", "process_vm_readv", "seccomp",
		"open_by_handle_at", "name_to_handle_at", "cachestat", "fchmodat2", "file_setattr", "fchmodat", "utimensat",
	}, want: kill},
	{filters: []Filter{FilterHelper}, calls: []string{"clone3"}, want: errno(unix.ENOSYS)},
	{filters: []Filter{FilterHelper}, calls: []string{"mmap", "mprotect"}, args: [6]uint64{0, 4096, unix.PROT_READ | unix.PROT_WRITE}, want: allow},
	{filters: []Filter{FilterHelper}, calls: []string{"mmap", "mprotect"}, args: [6]uint64{0, 4096, unix.PROT_READ | unix.PROT_EXEC}, want: kill},
	{filters: []Filter{FilterHelper}, calls: []string{"clone"}, args: [6]uint64{0xd0f00}, want: allow},  // as the Go runtime makes threads
	{filters: []Filter{FilterHelper}, calls: []string{"clone"}, args: [6]uint64{0x3d0f00}, want: allow}, // as libc makes threads
	{filters: []Filter{FilterHelper}, calls: []string{"clone"}, args: [6]uint64{uint64(unix.SIGCHLD)}, want: kill},
	{filters: []Filter{FilterHelper}, calls: []string{"clone"}, args: [6]uint64{unix.CLONE_VM | unix.CLONE_VFORK | uint64(unix.SIGCHLD)}, want: kill},
	{filters: []Filter{FilterHelper}, calls: []string{"clone"}, args: [6]uint64{0x3d0f00 | unix.CLONE_NEWUSER}, want: kill},
	{filters: []Filter{FilterHelper}, calls: []string{"prctl"}, args: [6]uint64{unix.PR_SET_VMA}, want: allow},
	{filters: []Filter{FilterHelper}, calls: []string{"prctl"}, args: [6]uint64{unix.PR_SET_DUMPABLE}, want: kill},
	{filters: []Filter{FilterHelper}, calls: []string{"fcntl"}, args: [6]uint64{0, unix.F_DUPFD_CLOEXEC}, want: allow},
	{filters: []Filter{FilterHelper}, calls: []string{"fcntl"}, args: [6]uint64{0, unix.F_SETOWN}, want: kill},
	{filters: []Filter{FilterHelper}, calls: []string{"tgkill"}, args: [6]uint64{ownPID, ownPID, uint64(unix.SIGURG)}, want: allow},
	{filters: []Filter{FilterHelper}, calls: []string{"tgkill"}, args: [6]uint64{1, 1, uint64(unix.SIGKILL)}, want: kill},
}

// TestFilterWants runs the calls in wants through the programs of all
// architectures.
func TestFilterWants(t *testing.T) {
	t.Parallel()
	numbers := systemCalls(t)
	for arch := range architectures {
		machines := map[Filter]*machine{}
		for _, w := range wants {
			if w.amd64 && arch != "amd64" {
				continue
			}
			for _, filter := range w.filters {
				if machines[filter] == nil {
					machines[filter] = newMachine(t, arch, filter)
				}
				for _, call := range w.calls {
					number, ok := numbers[arch][call]
					if !ok {
						t.Errorf("%s has no system call %s", arch, call)
						continue
					}
					rig.Is(t, machines[filter].run(t, number, w.args), w.want, "%s/%s: %s(%#x)", arch, filter, call, w.args)
				}
			}
		}
	}
}
