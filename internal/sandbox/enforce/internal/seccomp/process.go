package seccomp

import "slices"

// The numbers in the rules belong to the kernel's interface. x/sys has most of
// them, but for Linux only; the tests of enforce compare them with x/sys.
const (
	cloneNewTime = 0x00000080
	// cloneNew is NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
	cloneNew = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000

	tiocsti   = 0x5412
	tioclinux = 0x541c
	tiocsetd  = 0x5423
	tunSetIff = 0x400454ca

	perLinux32       = 0x0008
	uname26          = 0x0020000
	addrNoRandomize  = 0x0040000
	personalityQuery = 0xffffffff

	afUnix, afInet, afInet6, afVsock             = 1, 2, 10, 40
	sockStream, sockDgram, sockRaw, sockSeqpaket = 1, 2, 3, 5
	// sockTypeMask has the bits that the kernel uses as the type; the flags are above it.
	sockTypeMask = 0xf
	msgFastopen  = 0x20000000

	solSocket, soError, soReuseport = 1, 4, 15

	// setIDs are S_ISUID and S_ISGID. oTmpfile is __O_TMPFILE: the bit that
	// makes a file, without the bit of O_DIRECTORY, which O_TMPFILE contains.
	setIDs           = 0o6000
	oCreat, oTmpfile = 0o100, 0o20000000

	fSetLease, fSetDeleg = 1024, 1040
)

// restricted is for processes without a network and with a view (sandbox.md 7 and
// 14.5).
func restricted() []Rule {
	return slices.Concat(offline(), setID())
}

// restrictedSockets is restricted, for processes that may connect to named UNIX sockets. The listener
// decides about each connection. A socket cannot be bound, and every message goes to the peer of connect.
func restrictedSockets() []Rule {
	return slices.Concat(unixStreams(), judgedConnects(), connectedOnly(), aside(), personality(), common(), otherProcesses(), setID())
}

// judgedConnects leaves every connection to a listener.
func judgedConnects() []Rule { return []Rule{{Calls: []string{"connect"}, Action: Notify}} }

// connectedOnly allows what programs do with a UNIX socket that is connected, and refuses what names a
// peer or waits for one.
func connectedOnly() []Rule {
	return []Rule{
		// sendto without an address is what send(3) calls.
		{Calls: []string{"sendto"}, Action: Allow, When: []Cond{{4, 0xffffffff_ffffffff, 0}}},
		{Calls: []string{"setsockopt"}, Action: Allow, When: []Cond{int32Is(1, solSocket)}},
		{Calls: []string{"accept", "accept4", "bind", "listen", "recvmmsg", "sendmmsg", "sendto", "setsockopt"}, Action: Errno(eperm)},
	}
}

// offline has the rules for all processes without a network and with a restricted
// file system, with a view or without.
func offline() []Rule {
	return slices.Concat(network(), personality(), common(), otherProcesses())
}

// enabled is for processes with the host's network and a restricted file system.
// It does not refuse ptrace: such processes can see, and so trace, only each
// other.
func enabled() []Rule {
	return slices.Concat(sockets(), []Rule{
		// The listener decides where connect may go and which names bind may take.
		{Calls: []string{"bind", "connect"}, Action: Notify},
	}, personality(addrNoRandomize), common(), otherProcesses(), setID()) // debuggers set addrNoRandomize
}

// sockets has the rules for all processes with the network and a restricted file
// system, but for the calls that a listener decides about.
func sockets() []Rule {
	return slices.Concat([]Rule{
		{Calls: []string{"socket", "socketpair"}, Action: Errno(eperm), When: []Cond{int32Is(0, afVsock)}},
		// A datagram socket can name another peer in every sendmsg, behind a
		// pointer that no filter can follow. Other UNIX sockets name their peer
		// in connect only.
		{Calls: []string{"socket", "socketpair"}, Action: Errno(eperm), When: []Cond{int32Is(0, afUnix), {1, sockTypeMask, sockDgram}}},
		{Calls: []string{"socket", "socketpair"}, Action: Errno(eperm), When: []Cond{int32Is(0, afUnix), {1, sockTypeMask, sockRaw}}},
		{Calls: slices.Concat(ioUring, bypasses), Action: Errno(eperm)},
	}, fastOpen())
}

// fastOpen refuses TCP Fast Open, because with it a send connects and the listener sees
// no connect. The error is the error of a host on which Fast Open is switched off, so
// programs fall back to connect.
func fastOpen() []Rule {
	return []Rule{
		{Calls: []string{"sendmsg"}, Action: Errno(eopnotsupp), When: []Cond{{2, msgFastopen, msgFastopen}}},
		{Calls: []string{"sendmmsg", "sendto"}, Action: Errno(eopnotsupp), When: []Cond{{3, msgFastopen, msgFastopen}}},
	}
}

// managed is for processes in a network namespace whose only ways out are the
// listeners of a proxy (network.md 9). The processes may make IP sockets, except for raw
// sockets, and pairs of UNIX sockets. With allUnix they may also make single UNIX sockets,
// which may connect to every path. With named they may make single UNIX sockets for connections; then
// a listener has to decide about each connection, whatever the socket.
func managed(allUnix, named bool) []Rule {
	calls := []string{"socket", "socketpair"}
	rules := []Rule{
		{Calls: calls, Action: Errno(eperm), When: []Cond{{1, sockTypeMask, sockRaw}, int32Is(0, afInet)}},
		{Calls: calls, Action: Errno(eperm), When: []Cond{{1, sockTypeMask, sockRaw}, int32Is(0, afInet6)}},
		{Calls: calls, Action: Allow, When: []Cond{int32Is(0, afInet)}},
		{Calls: calls, Action: Allow, When: []Cond{int32Is(0, afInet6)}},
	}
	if allUnix {
		rules = append(rules, Rule{Calls: calls, Action: Allow, When: []Cond{int32Is(0, afUnix)}})
	}
	unix := unixPairs()
	if named {
		unix = unixStreams()
	}
	return slices.Concat(rules, unix, []Rule{
		{Calls: slices.Concat(tracing, ioUring, bypasses), Action: Errno(eperm)},
	}, personality(), common(), otherProcesses(), setID())
}

// held is for processes in a network namespace whose connections are held (transparent.md 2). The rules
// come before those of managed. The listener connects sockets, and says what their peers and their
// errors are.
func held() []Rule {
	return slices.Concat(noMultipath(), fastOpen(), []Rule{
		{Calls: []string{"connect", "getpeername"}, Action: Notify},
		{Calls: []string{"getsockopt"}, Action: Notify, When: []Cond{int32Is(1, solSocket), int32Is(2, soError)}},
	})
}

// noMultipath refuses sockets of MPTCP, because a held connection of theirs would move no bytes. The
// error is the error of a kernel without MPTCP, so programs fall back to TCP.
func noMultipath() []Rule {
	const ipprotoMPTCP = 262
	return []Rule{{Calls: []string{"socket"}, Action: Errno(eprotonosupport), When: []Cond{int32Is(2, ipprotoMPTCP)}}}
}

// unixPairs allows pairs of UNIX sockets whose ends can name no other peer, and refuses
// all other sockets.
func unixPairs() []Rule {
	return []Rule{
		{Calls: []string{"socketpair"}, Action: Allow, When: []Cond{int32Is(0, afUnix), {1, sockTypeMask, sockStream}}},
		{Calls: []string{"socketpair"}, Action: Allow, When: []Cond{int32Is(0, afUnix), {1, sockTypeMask, sockSeqpaket}}},
		{Calls: []string{"socket", "socketpair"}, Action: Errno(eperm)},
	}
}

// setID keeps processes from making files with the set-user-ID or set-group-ID
// bit, because a user who executes such a file outside would get the ids of the agent's
// user. On a directory the set-group-ID bit is harmless. It is refused too, because no
// filter can see whether a path leads to a directory. mkdir stays allowed, because it
// ignores both bits.
func setID() []Rule {
	without := func(arg int) []Cond { return []Cond{{arg, setIDs, 0}} }
	var rules []Rule
	for _, c := range []struct {
		calls []string
		mode  int
	}{
		{[]string{"chmod", "creat", "fchmod", "mknod"}, 1},
		{[]string{"fchmodat", "fchmodat2", "mknodat"}, 2},
	} {
		rules = append(rules,
			Rule{Calls: c.calls, Action: Allow, When: without(c.mode)},
			Rule{Calls: c.calls, Action: Errno(eperm)})
	}
	for _, c := range []struct {
		call  string
		flags int
	}{{"open", 1}, {"openat", 2}} {
		calls := []string{c.call}
		rules = append(rules,
			// An open that makes no file ignores the mode, so the mode may be anything.
			Rule{Calls: calls, Action: Allow, When: []Cond{{c.flags, oCreat | oTmpfile, 0}}},
			Rule{Calls: calls, Action: Allow, When: without(c.flags + 1)},
			Rule{Calls: calls, Action: Errno(eperm)})
	}
	// The mode of openat2 is behind a pointer. Programs fall back to openat, as
	// they do on Linux before 5.6.
	return append(rules, Rule{Calls: []string{"openat2"}, Action: Errno(enosys)})
}

// landlock is for processes without a network, a mount view and namespaces. In addition
// to offline, it refuses actions that Landlock does not control (sandbox.md 14.4,
// supervised.md 5).
func landlock() []Rule {
	rules := offline()
	// The error is the error of a read-only mount.
	rules = append(rules, Rule{Calls: []string{
		"chmod", "fchmod", "fchmodat", "fchmodat2",
		"chown", "fchown", "fchownat", "lchown",
		"futimesat", "utime", "utimensat", "utimes",
		"fremovexattr", "fsetxattr", "lremovexattr", "lsetxattr", "removexattr", "removexattrat", "setxattr", "setxattrat",
		"file_setattr",
	}, Action: Errno(erofs)})
	return slices.Concat(rules, fileRequests(), systemV())
}

// fileRequests refuses ioctl(2) requests of file systems, because some of them change an
// inode through a descriptor that is open for reading only. It refuses all requests of the
// types that file systems use, except for five requests that only read.
func fileRequests() []Rule {
	var rules []Rule
	for _, read := range []uint32{
		0x80086601, // FS_IOC_GETFLAGS
		0x80046601, // FS_IOC32_GETFLAGS
		0xc020660b, // FS_IOC_FIEMAP
		0x80087601, // FS_IOC_GETVERSION
		0x801c581f, // FS_IOC_FSGETXATTR
	} {
		rules = append(rules, Rule{Calls: []string{"ioctl"}, Action: Allow, When: []Cond{int32Is(1, read)}})
	}
	for _, kind := range []uint64{'f', 'X', 'v', 'r', 'e', 0xf5, 0xcd} {
		rules = append(rules, Rule{Calls: []string{"ioctl"}, Action: Errno(erofs), When: []Cond{{1, 0xff00, kind << 8}}})
	}
	return rules
}

// systemV refuses System V IPC and POSIX message queues, because the processes would use
// those of the host.
func systemV() []Rule {
	return []Rule{{Calls: []string{
		"mq_open", "mq_unlink",
		"msgctl", "msgget", "msgrcv", "msgsnd",
		"semctl", "semget", "semop", "semtimedop",
		"shmat", "shmctl", "shmget",
	}, Action: Errno(eperm)}}
}

// otherProcesses keeps a process from changing the scheduling and the limits of
// other processes of the same user. Neither Landlock nor a lack of capabilities
// prevents such changes. One of these processes is the init, which watches over the
// command. Without a PID namespace a process could change every process of the user. A
// thread may name itself only as 0, because a filter does not know the id of the thread.
func otherProcesses() []Rule {
	itself := func(calls ...string) []Rule {
		return []Rule{
			{Calls: calls, Action: Allow, When: []Cond{int32Is(0, 0)}},
			{Calls: calls, Action: Errno(eperm)},
		}
	}
	const prioProcess, ioprioWhoProcess = 0, 1
	return slices.Concat(
		// A prlimit64 without new limits only reads, and may name any process.
		[]Rule{{Calls: []string{"prlimit64"}, Action: Allow, When: []Cond{{2, 0xffffffff_ffffffff, 0}}}},
		itself("prlimit64", "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler"),
		[]Rule{
			{Calls: []string{"setpriority"}, Action: Allow, When: []Cond{int32Is(0, prioProcess), int32Is(1, 0)}},
			{Calls: []string{"ioprio_set"}, Action: Allow, When: []Cond{int32Is(0, ioprioWhoProcess), int32Is(1, 0)}},
			{Calls: []string{"setpriority", "ioprio_set"}, Action: Errno(eperm)},
		})
}

// hiddenPaths refuses calls that reveal something about paths which Landlock does not
// let a process open. It allows stat(2) and readlink(2), because programs cannot work
// without them.
func hiddenPaths() []Rule {
	return []Rule{{Calls: []string{
		"getxattr", "getxattrat", "lgetxattr", "listxattr", "listxattrat", "llistxattr", "inotify_add_watch", "name_to_handle_at",
	}, Action: Errno(eacces)}}
}

// network refuses the network, and the ways to get a network through other
// processes. Processes that are not restricted otherwise have this filter alone.
// shutdown, getsockopt, getsockname and getpeername stay allowed, because the only sockets
// that a process can get here are UNIX sockets without a peer outside (sandbox.md 7).
func network() []Rule {
	return slices.Concat(unixStreams(), []Rule{
		{Calls: []string{
			"accept", "accept4", "bind", "connect", "listen", "recvmmsg", "sendmmsg", "sendto", "setsockopt",
		}, Action: Errno(eperm)},
	}, aside())
}

// unixStreams allows UNIX sockets that can name a peer only in connect, and refuses all other sockets.
func unixStreams() []Rule {
	sockets := []string{"socket", "socketpair"}
	return []Rule{
		{Calls: sockets, Action: Allow, When: []Cond{int32Is(0, afUnix), {1, sockTypeMask, sockStream}}},
		{Calls: sockets, Action: Allow, When: []Cond{int32Is(0, afUnix), {1, sockTypeMask, sockSeqpaket}}},
		{Calls: sockets, Action: Errno(eperm)},
	}
}

// aside refuses the ways to a network that lead through other processes and through the kernel.
func aside() []Rule {
	return []Rule{
		{Calls: tracing, Action: Errno(eperm)},
		{Calls: slices.Concat(ioUring, bypasses), Action: Errno(eperm)},
		// These two put input into a terminal, which a shell outside may run.
		{Calls: []string{"ioctl"}, Action: Errno(eperm), When: []Cond{int32Is(1, tiocsti)}},
		{Calls: []string{"ioctl"}, Action: Errno(eperm), When: []Cond{int32Is(1, tioclinux)}},
		interfaces(),
	}
}

// interfaces refuses to open an interface by /dev/net/tun. Everybody may open one that has no owner.
func interfaces() Rule {
	return Rule{Calls: []string{"ioctl"}, Action: Errno(eperm), When: []Cond{int32Is(1, tunSetIff)}}
}

// tracing are calls by which a process inspects other processes.
var tracing = []string{"kcmp", "process_vm_readv", "process_vm_writev", "ptrace"}

// bypasses are calls that reach the network in other ways: through descriptors and memory of
// other processes, other network namespaces, programs that run in the kernel, and
// request_key, for which the kernel starts a program that may ask the DNS.
var bypasses = []string{"bpf", "pidfd_getfd", "process_madvise", "request_key", "setns"}

// ioUring are calls by which a process has the kernel do the work of other calls. No filter
// sees those other calls.
var ioUring = []string{"io_uring_enter", "io_uring_register", "io_uring_setup"}

// personality allows the values that programs need for compatibility and the
// values in more, and refuses all other values.
func personality(more ...uint32) []Rule {
	var rules []Rule
	for _, value := range append([]uint32{0, perLinux32, uname26, uname26 | perLinux32, personalityQuery}, more...) {
		rules = append(rules, Rule{Calls: []string{"personality"}, Action: Allow, When: []Cond{int32Is(0, value)}})
	}
	return append(rules, Rule{Calls: []string{"personality"}, Action: Errno(eperm)})
}

// fileSystems refuses requests to file systems that would circumvent a policy, or harm other
// users of the same files.
func fileSystems() []Rule {
	var rules []Rule
	// These have the type of Btrfs, but work on many file systems, and only copy
	// from one descriptor to another. So they are allowed before the type is
	// refused.
	for _, request := range []uint32{
		0x40049409, // FICLONE
		0x4020940d, // FICLONERANGE
		0xc0189436, // FIDEDUPERANGE
	} {
		rules = append(rules, Rule{Calls: []string{"ioctl"}, Action: Allow, When: []Cond{int32Is(1, request)}})
	}
	// The owner of a subvolume of Btrfs or bcachefs may take a snapshot of it. A view hides
	// a path by a mount over it, but in the snapshot no mount is over that path.
	const btrfs, bcachefs = 0x94, 0xbc
	for _, kind := range []uint64{btrfs, bcachefs} {
		rules = append(rules, Rule{Calls: []string{"ioctl"}, Action: Errno(eperm), When: []Cond{{1, 0xff00, kind << 8}}})
	}
	// These add or remove the key of an encrypted directory. Without the key nobody on the
	// host can read the directory.
	for _, request := range []uint32{
		0xc0506617, // FS_IOC_ADD_ENCRYPTION_KEY
		0xc0406618, // FS_IOC_REMOVE_ENCRYPTION_KEY
		0xc0406619, // FS_IOC_REMOVE_ENCRYPTION_KEY_ALL_USERS
	} {
		rules = append(rules, Rule{Calls: []string{"ioctl"}, Action: Errno(eperm), When: []Cond{int32Is(1, request)}})
	}
	// A process can take a lease on a file that it may read. Another process that opens the
	// file is then delayed, for 45 s by default, and the first process learns of the open.
	for _, command := range []uint32{fSetLease, fSetDeleg} {
		rules = append(rules, Rule{Calls: []string{"fcntl"}, Action: Errno(eperm), When: []Cond{int32Is(1, command)}})
	}
	return rules
}

// common has the refusals for every process with a restricted file system.
func common() []Rule {
	return append(fileSystems(), []Rule{
		{Calls: []string{"ioctl"}, Action: Errno(eperm), When: []Cond{int32Is(1, tiocsti)}},
		{Calls: []string{"ioctl"}, Action: Errno(eperm), When: []Cond{int32Is(1, tioclinux)}},
		{Calls: []string{"ioctl"}, Action: Errno(eperm), When: []Cond{int32Is(1, tiocsetd)}}, // loads line disciplines
		// The requests of the Linux console. Two of them, KDSKBENT and KDSKBSENT,
		// put commands on keys. Those of AMD's GPUs have the same type, but also a size.
		{Calls: []string{"ioctl"}, Action: Errno(eperm), When: []Cond{{1, 0xffffff00, 'K' << 8}}},
		{Calls: []string{"clone"}, Action: Allow, When: []Cond{{0, cloneNew, 0}}},
		{Calls: []string{"unshare"}, Action: Allow, When: []Cond{{0, cloneNew | cloneNewTime, 0}}},
		{Calls: []string{"clone", "unshare"}, Action: Errno(eperm)},
		// The flags of clone3 are behind a pointer; libc falls back to clone.
		{Calls: []string{"clone3"}, Action: Errno(enosys)},
		{Calls: []string{
			"chroot", "fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr", "move_mount", "open_tree",
			"open_tree_attr", "pivot_root", "umount2",
		}, Action: Errno(eperm)},
		// These fail as on kernels before 6.8, so that programs read mountinfo instead.
		{Calls: []string{"listmount", "statmount"}, Action: Errno(enosys)},
		{Calls: []string{
			"add_key", "keyctl",
			"perf_event_open", "userfaultfd",
			"fanotify_init", "lookup_dcookie", "open_by_handle_at",
			"lsm_set_self_attr",
			"migrate_pages", "move_pages",
		}, Action: Errno(eperm)},
		// These act on the whole machine. The kernel refuses them to processes
		// without capabilities. The filter refuses them as a second line of defence.
		{Calls: []string{
			"acct", "quotactl", "quotactl_fd", "swapoff", "swapon",
			"adjtimex", "clock_adjtime", "clock_settime", "settimeofday",
			"delete_module", "finit_module", "init_module", "kexec_file_load", "kexec_load", "reboot", "uselib",
			"ioperm", "iopl",
			"nfsservctl", "setdomainname", "sethostname", "syslog", "vhangup",
		}, Action: Errno(eperm)},
	}...)
}
