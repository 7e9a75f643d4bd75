package calls

import (
	"slices"

	"github.com/execagent/execagent/sandbox"
)

// Call is a system call that at least one level does not leave to the kernel.
type Call struct {
	Name string
	// AMD64 and ARM64 are the call's numbers; -1 if the architecture has no
	// such call.
	AMD64, ARM64 int
	// Online says that the row is only for commands with the network enabled.
	// Without the network their filter refuses the call.
	Online bool
	// Unscoped says that the row is only for commands whose Landlock domain does
	// not keep signals inside: for ABIs before 6.
	Unscoped bool
	// Held says that the row is only for commands whose connections are held. For all others the
	// kernel does the call.
	Held bool

	levels [3]Treatment // in LevelWrites, LevelReads and LevelMetadata
}

// In returns the treatment of the call in that level.
func (c Call) In(level sandbox.Level) Treatment { return c.levels[level-sandbox.LevelWrites] }

// Action says who does a call.
type Action uint8

// The actions.
const (
	Kernel     Action = iota // the kernel does it, as without a filter
	Supervisor               // it waits for the supervisor
	Failure                  // it fails with the errno of the treatment
)

// Treatment is the treatment of a call in one level.
type Treatment struct {
	Action Action
	Errno  uint16 // of a Failure; the same number on both architectures
	// Unless are alternatives: the kernel does the call if all conditions of one
	// of them hold.
	Unless [][]Cond
}

// Cond holds if the bits of an argument that are set in Mask are equal to Value.
// Where the kernel takes an argument as int, Mask leaves out the upper 32 bits: a
// program may put anything there.
type Cond struct {
	Arg         int // from 0
	Mask, Value uint64
}

const none = -1 // no such call on arm64

// Errors that calls fail with.
const (
	eperm  = 1
	enosys = 38
)

var (
	kernel = Treatment{}
	asked  = Treatment{Action: Supervisor}

	// The usual rows of levels.
	always   = [3]Treatment{asked, asked, asked}
	reading  = [3]Treatment{kernel, asked, asked}
	metadata = [3]Treatment{kernel, kernel, asked}
	// unknown calls fail as on a kernel without them: their paths, flags or modes
	// are behind a pointer, and all programs fall back.
	unknown = [3]Treatment{fails(enosys), fails(enosys), fails(enosys)}
)

func fails(errno uint16) Treatment { return Treatment{Action: Failure, Errno: errno} }

// unless returns the treatment of a call that the kernel does if the conditions
// hold.
func unless(conds ...Cond) Treatment { return Treatment{Action: Supervisor, Unless: [][]Cond{conds}} }

// or returns the treatment with one more alternative.
func (t Treatment) or(conds ...Cond) Treatment {
	t.Unless = append(slices.Clip(t.Unless), conds)
	return t
}

func all(t Treatment) [3]Treatment { return [3]Treatment{t, t, t} }

// int32Is holds if an argument that the kernel takes as int is value.
func int32Is(arg int, value uint32) Cond { return Cond{arg, 0xffffffff, uint64(value)} }

const (
	// writing are the flags of open(2) with which something can change:
	// O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, and the bit of O_TMPFILE that makes a
	// file.
	writing = 0o1 | 0o2 | 0o100 | 0o1000 | 0o20000000
	wOK     = 2 // W_OK of access(2)
)

// opens returns the row of levels of a call whose flags are an argument.
func opens(flags int) [3]Treatment {
	return [3]Treatment{unless(Cond{flags, writing, 0}), asked, asked}
}

// asks returns the row of levels of a call that reports whether something may
// be done: if a view is read-only, access(2) must say so.
func asks(mode int) [3]Treatment {
	return [3]Treatment{unless(Cond{mode, wOK, 0}), unless(Cond{mode, wOK, 0}), asked}
}

// Calls returns the rows, in a new slice.
func Calls() []Call {
	return []Call{
		// Opening. The filter looks at the rows in this order, and these two are
		// the most frequent calls.
		{Name: "openat", AMD64: 257, ARM64: 56, levels: opens(2)},
		{Name: "open", AMD64: 2, ARM64: none, levels: opens(1)},
		{Name: "creat", AMD64: 85, ARM64: none, levels: always},
		{Name: "openat2", AMD64: 437, ARM64: 437, levels: unknown},
		{Name: "truncate", AMD64: 76, ARM64: 45, levels: always},

		// The kernel changes the umask; the supervisor only learns that it does.
		{Name: "umask", AMD64: 95, ARM64: 166, levels: always},

		// Names.
		{Name: "mkdir", AMD64: 83, ARM64: none, levels: always},
		{Name: "mkdirat", AMD64: 258, ARM64: 34, levels: always},
		{Name: "mknod", AMD64: 133, ARM64: none, levels: always},
		{Name: "mknodat", AMD64: 259, ARM64: 33, levels: always},
		{Name: "rmdir", AMD64: 84, ARM64: none, levels: always},
		{Name: "unlink", AMD64: 87, ARM64: none, levels: always},
		{Name: "unlinkat", AMD64: 263, ARM64: 35, levels: always},
		{Name: "rename", AMD64: 82, ARM64: none, levels: always},
		{Name: "renameat", AMD64: 264, ARM64: 38, levels: always},
		{Name: "renameat2", AMD64: 316, ARM64: 276, levels: always},
		{Name: "link", AMD64: 86, ARM64: none, levels: always},
		{Name: "linkat", AMD64: 265, ARM64: 37, levels: always},
		{Name: "symlink", AMD64: 88, ARM64: none, levels: always},
		{Name: "symlinkat", AMD64: 266, ARM64: 36, levels: always},

		// Metadata. The forms with a descriptor are here too: another thread
		// could put another file under its number with dup2(2).
		{Name: "chmod", AMD64: 90, ARM64: none, levels: always},
		{Name: "fchmod", AMD64: 91, ARM64: 52, levels: always},
		{Name: "fchmodat", AMD64: 268, ARM64: 53, levels: always},
		{Name: "fchmodat2", AMD64: 452, ARM64: 452, levels: always},
		{Name: "chown", AMD64: 92, ARM64: none, levels: always},
		{Name: "lchown", AMD64: 94, ARM64: none, levels: always},
		{Name: "fchown", AMD64: 93, ARM64: 55, levels: always},
		{Name: "fchownat", AMD64: 260, ARM64: 54, levels: always},
		{Name: "utime", AMD64: 132, ARM64: none, levels: always},
		{Name: "utimes", AMD64: 235, ARM64: none, levels: always},
		{Name: "futimesat", AMD64: 261, ARM64: none, levels: always},
		{Name: "utimensat", AMD64: 280, ARM64: 88, levels: always},
		{Name: "setxattr", AMD64: 188, ARM64: 5, levels: always},
		{Name: "lsetxattr", AMD64: 189, ARM64: 6, levels: always},
		{Name: "fsetxattr", AMD64: 190, ARM64: 7, levels: always},
		{Name: "removexattr", AMD64: 197, ARM64: 14, levels: always},
		{Name: "lremovexattr", AMD64: 198, ARM64: 15, levels: always},
		{Name: "fremovexattr", AMD64: 199, ARM64: 16, levels: always},
		{Name: "setxattrat", AMD64: 463, ARM64: 463, levels: unknown},
		{Name: "getxattrat", AMD64: 464, ARM64: 464, levels: unknown},
		{Name: "listxattrat", AMD64: 465, ARM64: 465, levels: unknown},
		{Name: "removexattrat", AMD64: 466, ARM64: 466, levels: unknown},
		{Name: "file_getattr", AMD64: 468, ARM64: 468, levels: unknown},
		{Name: "file_setattr", AMD64: 469, ARM64: 469, levels: unknown},

		// Calls that reveal something about a path without opening it.
		{Name: "access", AMD64: 21, ARM64: none, levels: asks(1)},
		{Name: "faccessat", AMD64: 269, ARM64: 48, levels: asks(2)},
		{Name: "faccessat2", AMD64: 439, ARM64: 439, levels: asks(2)},
		{Name: "newfstatat", AMD64: 262, ARM64: 79, levels: metadata},
		{Name: "statx", AMD64: 332, ARM64: 291, levels: metadata},
		{Name: "stat", AMD64: 4, ARM64: none, levels: metadata},
		{Name: "lstat", AMD64: 6, ARM64: none, levels: metadata},
		{Name: "readlink", AMD64: 89, ARM64: none, levels: metadata},
		{Name: "readlinkat", AMD64: 267, ARM64: 78, levels: metadata},
		{Name: "chdir", AMD64: 80, ARM64: 49, levels: metadata},
		{Name: "statfs", AMD64: 137, ARM64: 43, levels: metadata},
		{Name: "getxattr", AMD64: 191, ARM64: 8, levels: metadata},
		{Name: "lgetxattr", AMD64: 192, ARM64: 9, levels: metadata},
		{Name: "listxattr", AMD64: 194, ARM64: 11, levels: metadata},
		{Name: "llistxattr", AMD64: 195, ARM64: 12, levels: metadata},
		{Name: "inotify_add_watch", AMD64: 254, ARM64: 27, levels: metadata},
		{Name: "name_to_handle_at", AMD64: 303, ARM64: 264, levels: [3]Treatment{kernel, kernel, fails(eperm)}},

		// Programs.
		{Name: "execve", AMD64: 59, ARM64: 221, levels: reading},
		{Name: "execveat", AMD64: 322, ARM64: 281, levels: reading},

		// Limits and scheduling of other processes. A thread that names itself,
		// as 0, needs no supervisor; nor does a prlimit64 that only reads.
		{Name: "prlimit64", AMD64: 302, ARM64: 261, levels: all(unless(int32Is(0, 0)).or(Cond{2, 0xffffffff_ffffffff, 0}))},
		{Name: "sched_setaffinity", AMD64: 203, ARM64: 122, levels: all(unless(int32Is(0, 0)))},
		{Name: "sched_setscheduler", AMD64: 144, ARM64: 119, levels: all(unless(int32Is(0, 0)))},
		{Name: "sched_setparam", AMD64: 142, ARM64: 118, levels: all(unless(int32Is(0, 0)))},
		{Name: "sched_setattr", AMD64: 314, ARM64: 274, levels: all(unless(int32Is(0, 0)))},
		{Name: "setpriority", AMD64: 141, ARM64: 140, levels: all(unless(int32Is(0, 0), int32Is(1, 0)))},
		{Name: "ioprio_set", AMD64: 251, ARM64: 30, levels: all(unless(int32Is(0, 1), int32Is(1, 0)))},

		// Signals.
		{Name: "kill", AMD64: 62, ARM64: 129, Unscoped: true, levels: always},
		{Name: "tkill", AMD64: 200, ARM64: 130, Unscoped: true, levels: always},
		{Name: "tgkill", AMD64: 234, ARM64: 131, Unscoped: true, levels: always},
		{Name: "rt_sigqueueinfo", AMD64: 129, ARM64: 138, Unscoped: true, levels: always},
		{Name: "rt_tgsigqueueinfo", AMD64: 297, ARM64: 240, Unscoped: true, levels: always},
		{Name: "pidfd_send_signal", AMD64: 424, ARM64: 424, Unscoped: true, levels: always},

		// Sockets. A message without an address goes to the peer of connect.
		// Only for sendto can the filter see whether there is an address.
		{Name: "socket", AMD64: 41, ARM64: 198, Online: true, levels: always},
		{Name: "connect", AMD64: 42, ARM64: 203, Online: true, levels: always},
		{Name: "bind", AMD64: 49, ARM64: 200, Online: true, levels: always},
		{Name: "listen", AMD64: 50, ARM64: 201, Online: true, levels: always},
		{Name: "sendto", AMD64: 44, ARM64: 206, Online: true, levels: all(unless(Cond{4, 0xffffffff_ffffffff, 0}))},
		{Name: "sendmsg", AMD64: 46, ARM64: 211, Online: true, levels: always},
		{Name: "sendmmsg", AMD64: 307, ARM64: 269, Online: true, levels: always},

		// What a socket says about its peer, where the peer is not what the kernel has.
		// The filters leave only those of these calls to the supervisor that ask for that.
		{Name: "getpeername", AMD64: 52, ARM64: 205, Held: true, levels: always},
		{Name: "getsockname", AMD64: 51, ARM64: 204, Held: true, levels: always},
		{Name: "getsockopt", AMD64: 55, ARM64: 209, Held: true, levels: always},
		{Name: "setsockopt", AMD64: 54, ARM64: 208, Held: true, levels: always},
		{Name: "recvfrom", AMD64: 45, ARM64: 207, Held: true, levels: always},
		{Name: "recvmsg", AMD64: 47, ARM64: 212, Held: true, levels: always},
		{Name: "recvmmsg", AMD64: 299, ARM64: 243, Held: true, levels: always},
	}
}
