package seccomp

import "slices"

// The numbers in the rules are of the kernel's interface, which x/sys has for
// Linux only and some of them not at all; the tests of enforce compare them.
const (
	cloneNewTime = 0x00000080
	// cloneNew is NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
	cloneNew = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000

	tiocsti   = 0x5412
	tioclinux = 0x541c
	tiocsetd  = 0x5423

	perLinux32       = 0x0008
	uname26          = 0x0020000
	addrNoRandomize  = 0x0040000
	personalityQuery = 0xffffffff

	afUnix, afVsock                              = 1, 40
	sockStream, sockDgram, sockRaw, sockSeqpaket = 1, 2, 3, 5
	// sockTypeMask is what the kernel takes for the type; flags are above it.
	sockTypeMask = 0xf
	msgFastopen  = 0x20000000

	// setIDs are S_ISUID and S_ISGID. oTmpfile is __O_TMPFILE: the bit that
	// makes a file, without those of O_DIRECTORY.
	setIDs           = 0o6000
	oCreat, oTmpfile = 0o100, 0o20000000

	fSetLease, fSetDeleg = 1024, 1040
)

// restricted is for processes without a network: sandbox.md 7 and 14.5.
func restricted() []Rule {
	return slices.Concat(offline(), setID())
}

// offline is what processes without a network and with a restricted file system
// have in common.
func offline() []Rule {
	return slices.Concat(network(), personality(), common(), otherProcesses())
}

// enabled is for processes with the host's network and a restricted file
// system. They may trace each other: they cannot see other processes.
func enabled() []Rule {
	return slices.Concat([]Rule{
		{Calls: []string{"socket", "socketpair"}, Action: Errno(eperm), When: []Cond{int32Is(0, afVsock)}},
		// A datagram socket names its peer behind a pointer at every sendmsg,
		// which no filter can see; the others do so in connect only.
		{Calls: []string{"socket", "socketpair"}, Action: Errno(eperm), When: []Cond{int32Is(0, afUnix), {1, sockTypeMask, sockDgram}}},
		{Calls: []string{"socket", "socketpair"}, Action: Errno(eperm), When: []Cond{int32Is(0, afUnix), {1, sockTypeMask, sockRaw}}},
		{Calls: slices.Concat(ioUring, bypasses), Action: Errno(eperm)},
		// The listener looks where it goes, and what name is taken.
		{Calls: []string{"bind", "connect"}, Action: Notify},
		// TCP Fast Open connects without connect; the error is that of a host
		// which has it switched off, so that programs fall back.
		{Calls: []string{"sendmsg"}, Action: Errno(eopnotsupp), When: []Cond{{2, msgFastopen, msgFastopen}}},
		{Calls: []string{"sendmmsg", "sendto"}, Action: Errno(eopnotsupp), When: []Cond{{3, msgFastopen, msgFastopen}}},
	}, personality(addrNoRandomize), common(), otherProcesses(), setID()) // debuggers set that personality
}

// setID keeps processes from making files with the set-user-ID or set-group-ID
// bit: a process that executes such a file outside gets the ids of the agent's user.
// The bit of a directory, which only hands its group down, goes with it: no
// filter can see what a path leads to. mkdir ignores both bits.
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
			// Where nothing is made, the mode may be anything.
			Rule{Calls: calls, Action: Allow, When: []Cond{{c.flags, oCreat | oTmpfile, 0}}},
			Rule{Calls: calls, Action: Allow, When: without(c.flags + 1)},
			Rule{Calls: calls, Action: Errno(eperm)})
	}
	// Its mode is behind a pointer. Programs fall back, as on Linux before 5.6.
	return append(rules, Rule{Calls: []string{"openat2"}, Action: Errno(enosys)})
}

// landlock is restricted for where there is no mount view and no namespace: it
// refuses what Landlock does not look at. sandbox.md 14.4, supervised.md 5.
func landlock() []Rule {
	rules := offline()
	// A read-only mount would say EROFS.
	rules = append(rules, Rule{Calls: []string{
		"chmod", "fchmod", "fchmodat", "fchmodat2",
		"chown", "fchown", "fchownat", "lchown",
		"futimesat", "utime", "utimensat", "utimes",
		"fremovexattr", "fsetxattr", "lremovexattr", "lsetxattr", "removexattr", "removexattrat", "setxattr", "setxattrat",
		"file_setattr",
	}, Action: Errno(erofs)})
	// Some of these requests change inodes through descriptors that are open
	// for reading only. The types are those of file systems.
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
	return append(rules, Rule{Calls: []string{
		"mq_open", "mq_unlink",
		"msgctl", "msgget", "msgrcv", "msgsnd",
		"semctl", "semget", "semop", "semtimedop",
		"shmat", "shmctl", "shmget",
	}, Action: Errno(eperm)})
}

// otherProcesses keeps a process from changing others in the ways that neither
// capabilities nor Landlock stop when the user is the same: the scheduling and
// the limits of its init, which watches over it, and where there is no PID
// namespace those of all processes of the user. A thread that names itself by
// number is refused as well: a filter cannot tell.
func otherProcesses() []Rule {
	itself := func(calls ...string) []Rule {
		return []Rule{
			{Calls: calls, Action: Allow, When: []Cond{int32Is(0, 0)}},
			{Calls: calls, Action: Errno(eperm)},
		}
	}
	const prioProcess, ioprioWhoProcess = 0, 1
	return slices.Concat(
		// Reading limits passes no new ones.
		[]Rule{{Calls: []string{"prlimit64"}, Action: Allow, When: []Cond{{2, 0xffffffff_ffffffff, 0}}}},
		itself("prlimit64", "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler"),
		[]Rule{
			{Calls: []string{"setpriority"}, Action: Allow, When: []Cond{int32Is(0, prioProcess), int32Is(1, 0)}},
			{Calls: []string{"ioprio_set"}, Action: Allow, When: []Cond{int32Is(0, ioprioWhoProcess), int32Is(1, 0)}},
			{Calls: []string{"setpriority", "ioprio_set"}, Action: Errno(eperm)},
		})
}

// hiddenPaths keeps a process from what Landlock shows of paths that it does not
// let it open, as far as programs can do without. What stays is what stat(2)
// and readlink(2) tell.
func hiddenPaths() []Rule {
	return []Rule{{Calls: []string{
		"getxattr", "getxattrat", "lgetxattr", "listxattr", "listxattrat", "llistxattr", "inotify_add_watch", "name_to_handle_at",
	}, Action: Errno(eacces)}}
}

// network takes the network away, and the ways around it through other
// processes. It is a filter of its own for processes that are not restricted
// otherwise. shutdown, getsockopt, getsockname and getpeername stay: they can
// only act on socket pairs (sandbox.md 7).
func network() []Rule {
	sockets := []string{"socket", "socketpair"}
	return []Rule{
		{Calls: sockets, Action: Allow, When: []Cond{int32Is(0, afUnix), {1, sockTypeMask, sockStream}}},
		{Calls: sockets, Action: Allow, When: []Cond{int32Is(0, afUnix), {1, sockTypeMask, sockSeqpaket}}},
		{Calls: sockets, Action: Errno(eperm)},
		{Calls: []string{
			"accept", "accept4", "bind", "connect", "listen", "recvmmsg", "sendmmsg", "sendto", "setsockopt",
		}, Action: Errno(eperm)},
		{Calls: []string{"kcmp", "process_vm_readv", "process_vm_writev", "ptrace"}, Action: Errno(eperm)},
		{Calls: slices.Concat(ioUring, bypasses), Action: Errno(eperm)},
		// What is typed into the terminal is run by the shell that it belongs to.
		{Calls: []string{"ioctl"}, Action: Errno(eperm), When: []Cond{int32Is(1, tiocsti)}},
		{Calls: []string{"ioctl"}, Action: Errno(eperm), When: []Cond{int32Is(1, tioclinux)}},
	}
}

// bypasses are ways to sockets of others: their descriptors, their memory, their
// network namespaces, programs that act in the kernel, and the program that the
// kernel starts for a key that it has not got, which asks the DNS.
var bypasses = []string{"bpf", "pidfd_getfd", "process_madvise", "request_key", "setns"}

// ioUring does other calls' work where no filter sees it.
var ioUring = []string{"io_uring_enter", "io_uring_register", "io_uring_setup"}

// personality allows the values that compatibility needs, and more.
func personality(more ...uint32) []Rule {
	var rules []Rule
	for _, value := range append([]uint32{0, perLinux32, uname26, uname26 | perLinux32, personalityQuery}, more...) {
		rules = append(rules, Rule{Calls: []string{"personality"}, Action: Allow, When: []Cond{int32Is(0, value)}})
	}
	return append(rules, Rule{Calls: []string{"personality"}, Action: Errno(eperm)})
}

// fileSystems are requests to file systems that undo what a policy says.
func fileSystems() []Rule {
	var rules []Rule
	// Of Btrfs's type, but for every file system: they copy between descriptors.
	for _, request := range []uint32{
		0x40049409, // FICLONE
		0x4020940d, // FICLONERANGE
		0xc0189436, // FIDEDUPERANGE
	} {
		rules = append(rules, Rule{Calls: []string{"ioctl"}, Action: Allow, When: []Cond{int32Is(1, request)}})
	}
	// Whoever owns a subvolume of Btrfs or bcachefs may take a snapshot of it:
	// what a mount hides at a path is bare in the copy.
	const btrfs, bcachefs = 0x94, 0xbc
	for _, kind := range []uint64{btrfs, bcachefs} {
		rules = append(rules, Rule{Calls: []string{"ioctl"}, Action: Errno(eperm), When: []Cond{{1, 0xff00, kind << 8}}})
	}
	// Without its key an encrypted directory is closed to everybody.
	for _, request := range []uint32{
		0xc0506617, // FS_IOC_ADD_ENCRYPTION_KEY
		0xc0406618, // FS_IOC_REMOVE_ENCRYPTION_KEY
		0xc0406619, // FS_IOC_REMOVE_ENCRYPTION_KEY_ALL_USERS
	} {
		rules = append(rules, Rule{Calls: []string{"ioctl"}, Action: Errno(eperm), When: []Cond{int32Is(1, request)}})
	}
	// A lease on a file that can be read holds up everybody who opens it, for
	// 45 s as a rule, and tells of him.
	for _, command := range []uint32{fSetLease, fSetDeleg} {
		rules = append(rules, Rule{Calls: []string{"fcntl"}, Action: Errno(eperm), When: []Cond{int32Is(1, command)}})
	}
	return rules
}

// common is refused to every process with a restricted file system.
func common() []Rule {
	return append(fileSystems(), []Rule{
		{Calls: []string{"ioctl"}, Action: Errno(eperm), When: []Cond{int32Is(1, tiocsti)}},
		{Calls: []string{"ioctl"}, Action: Errno(eperm), When: []Cond{int32Is(1, tioclinux)}},
		{Calls: []string{"ioctl"}, Action: Errno(eperm), When: []Cond{int32Is(1, tiocsetd)}}, // loads line disciplines
		// Of the Linux console: KDSKBENT and KDSKBSENT put commands on keys.
		{Calls: []string{"ioctl"}, Action: Errno(eperm), When: []Cond{{1, 0xff00, 'K' << 8}}},
		{Calls: []string{"clone"}, Action: Allow, When: []Cond{{0, cloneNew, 0}}},
		{Calls: []string{"unshare"}, Action: Allow, When: []Cond{{0, cloneNew | cloneNewTime, 0}}},
		{Calls: []string{"clone", "unshare"}, Action: Errno(eperm)},
		// Its flags are behind a pointer; libc falls back to clone.
		{Calls: []string{"clone3"}, Action: Errno(enosys)},
		{Calls: []string{
			"chroot", "fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr", "move_mount", "open_tree",
			"open_tree_attr", "pivot_root", "umount2",
		}, Action: Errno(eperm)},
		// As on the kernels before 6.8: programs read mountinfo instead.
		{Calls: []string{"listmount", "statmount"}, Action: Errno(enosys)},
		{Calls: []string{
			"add_key", "keyctl",
			"perf_event_open", "userfaultfd",
			"fanotify_init", "lookup_dcookie", "open_by_handle_at",
			"lsm_set_self_attr",
			"migrate_pages", "move_pages",
		}, Action: Errno(eperm)},
		// The machine's, which no process without capabilities may change.
		{Calls: []string{
			"acct", "quotactl", "quotactl_fd", "swapoff", "swapon",
			"adjtimex", "clock_adjtime", "clock_settime", "settimeofday",
			"delete_module", "finit_module", "init_module", "kexec_file_load", "kexec_load", "reboot", "uselib",
			"ioperm", "iopl",
			"nfsservctl", "setdomainname", "sethostname", "syslog", "vhangup",
		}, Action: Errno(eperm)},
	}...)
}
