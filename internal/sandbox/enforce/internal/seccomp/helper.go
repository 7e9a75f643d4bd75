package seccomp

const (
	protExec = 0x4
	prSetVMA = 0x53564d41

	// threadFlags are the flags of clone(2) that make a thread: CLONE_VM, FS, FILES, SIGHAND,
	// THREAD, SYSVSEM. threadOptions are CLONE_SETTLS, PARENT_SETTID, CHILD_CLEARTID.
	threadFlags   = 0x00000100 | 0x00000200 | 0x00000400 | 0x00000800 | 0x00010000 | 0x00040000
	threadOptions = 0x00080000 | 0x00100000 | 0x00200000

	fGetFD, fSetFD, fGetFL, fSetFL, fDupFDCloexec = 1, 2, 3, 4, 1030

	// OwnPID stands for the id of the process that loads the program. The code
	// that loads the program (enforce.Filter) puts the id in its place.
	OwnPID = 0x5e1f91d0
)

// helper allows only the calls that the fs helper needs (sandbox.md 13).
func helper() []Rule {
	rules := []Rule{
		// The most frequent calls are looked at first.
		{Calls: []string{"mmap", "mprotect"}, Action: Allow, When: []Cond{{2, protExec, 0}}},
		{Calls: []string{"tgkill"}, Action: Allow, When: []Cond{int32Is(0, OwnPID)}},
		{Calls: []string{"clone"}, Action: Allow, When: []Cond{{0, 0xffffffff &^ threadOptions, threadFlags}}},
		{Calls: []string{"prctl"}, Action: Allow, When: []Cond{int32Is(0, prSetVMA)}},
		// libc calls clone3 in builds with cgo, such as those for the race
		// detector, and falls back to clone.
		{Calls: []string{"clone3"}, Action: Errno(enosys)},
	}
	for _, command := range []uint32{fGetFL, fSetFL, fGetFD, fSetFD, fDupFDCloexec} {
		rules = append(rules, Rule{Calls: []string{"fcntl"}, Action: Allow, When: []Cond{int32Is(1, command)}})
	}
	return append(rules,
		// Files.
		Rule{Calls: []string{
			"close", "close_range", "copy_file_range", "fchmod", "fstat", "fstatfs", "ftruncate", "getdents64", "linkat",
			"lseek", "mkdirat", "newfstatat", "openat", "openat2", "pread64", "pwrite64", "read", "readlinkat", "renameat2",
			"statx", "symlinkat", "unlinkat", "write",
		}, Action: Allow},
		// Messages from and to the agent.
		Rule{Calls: []string{"recvmsg", "sendmsg"}, Action: Allow},
		// The runtime: memory, threads, signals, time, the network poller.
		Rule{Calls: []string{
			"madvise", "munmap",
			"arch_prctl", "exit", "exit_group", "futex", "getpid", "gettid", "rseq", "sched_getaffinity", "sched_yield",
			"set_robust_list",
			"restart_syscall", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack",
			"clock_gettime", "getrandom", "nanosleep",
			"epoll_create1", "epoll_ctl", "epoll_pwait", "eventfd2",
			"geteuid", // to compare it with the owner of a symbolic link in a shared folder
		}, Action: Allow},
	)
}
