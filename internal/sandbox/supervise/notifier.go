package supervise

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/linux/usernotify"
	"github.com/execagent/execagent/internal/sandbox/calls"
	"github.com/execagent/execagent/internal/sandbox/changes"
	"github.com/execagent/execagent/internal/sandbox/gate"
	"github.com/execagent/execagent/internal/sandbox/judge"
	"github.com/execagent/execagent/internal/sandbox/refusals"
	"github.com/execagent/execagent/internal/sandbox/supervise/execcheck"
	"github.com/execagent/execagent/internal/sandbox/supervise/sockfd"
	"github.com/execagent/execagent/sandbox"
)

const (
	// maxSockaddr is the size of struct sockaddr_storage: connect(2) and bind(2)
	// take no longer address.
	maxSockaddr = 128
	// maxUnixAddr is the size of struct sockaddr_un, unix(7).
	maxUnixAddr = 110
	// MaxBlocked bounds the calls of one command that may block at the same
	// time: each takes a thread of init. Further ones fail with EAGAIN.
	MaxBlocked = 256
	// maxBinding bounds the processes that bind names in the file system at the
	// same time. Further calls wait; they count among the MaxBlocked.
	maxBinding = 4
)

// Notifier does the calls that the command's filter passes to a listener: with
// copies of paths and addresses, which the command cannot change any more, and with
// its own descriptors of the objects. It lets the kernel continue a call only if
// nothing about contents depends on memory that the command could have changed
// since ([proceed]), because the kernel reads all arguments again.
type Notifier struct {
	config   Config
	listener int
	begun    unix.Timespec // a time before the command was started
	handlers map[int32]handler
	blocked  chan struct{}       // holds an element for each call that may block
	queue    chan struct{}       // has an element when more than one call waits
	closing  sync.Once           // the listener is closed
	binding  chan struct{}       // holds an element for each process of bindApart
	first    map[string]identity // the sockets that the policy names, at the start
	devices  map[device]bool     // that the policy names

	// With a level also:
	paths     *fsops.Resolver
	execs     *execcheck.Checker // nil in LevelWrites
	shm       shm
	memory    uint64 // the device of files that exist only in memory, memfd_create(2)
	sticky    sticky
	terminals knownTerminals
	// names is held shared by each call while it is done, and exclusively by
	// calls that move names: an object that a call has found stays in place
	// until the call is done.
	names  sync.RWMutex
	umasks umasks
	// sockets has the copies of the command's sockets.
	sockets *sockfd.Copies
}

// Config has the facts about the command and the agent for a [Notifier].
type Config struct {
	// Policy is the command's, with canonical paths.
	Policy *sandbox.Policy
	// Level is the level of the supervisor; with NoLevel the filter passes only
	// connect(2), bind(2) and what asks for a peer to it.
	Level sandbox.Level
	// Shm is the command's replacement for /dev/shm; "" if it has none.
	Shm string
	// Executed is called once, when the first program of the command was loaded and
	// before its first instruction; after an error that program is killed. It may
	// be nil. In LevelWrites and NoLevel it is not called.
	Executed func() error
	// Judge decides about every program that the command executes, after the policy. With a Judge,
	// the filter passes execve(2) and execveat(2) to the notifier in every level. It may be nil.
	Judge *judge.Judge
	// Ports are the ports of the agent's own listeners.
	Ports []uint16
	// Folders has the host's folders of sockets that the policy names, see [Folders]; nil if there is
	// no view.
	Folders map[string]int
	// Proxy leads to the listeners of a managed network; nil for another network.
	Proxy *gate.Teller
	// Holder holds connections to all other addresses; nil: there are none.
	Holder *gate.Holder
	// Refused collects what is refused; nil: nobody wants to know.
	Refused *refusals.Log
	// Changes collects what the command changes; nil: nobody wants to know.
	Changes *changes.Log
	// Self is the argv[0] of this program, and the argument that makes it a
	// helper. To bind a name, a notifier starts the program again with these
	// and more arguments: the helper calls [IsBind], and then [BindMain].
	Self []string
}

// New returns a notifier for a command that is not started yet: it notes the time,
// on the clock that file systems use for times of birth. After an error the process
// must end, because descriptors stay open; otherwise Serve closes everything.
func New(c Config) (*Notifier, error) {
	n := &Notifier{
		config: c, handlers: byNumber(), umasks: umasks{pending: map[int]int{}},
		first: identify(c.Policy.Sockets), devices: devicesAt(c.Policy.Devices), queue: make(chan struct{}, 1), blocked: make(chan struct{}, MaxBlocked), binding: make(chan struct{}, maxBinding),
	}
	if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &n.begun); err != nil {
		return nil, os.NewSyscallError("clock_gettime", err)
	}
	if c.Level == sandbox.NoLevel {
		if c.Judge == nil {
			return n, nil
		}
		var err error
		if n.memory, err = memoryDevice(); err != nil {
			return nil, err
		}
		n.execs = n.newChecker()
		return n, nil
	}
	if err := checkCase(c.Policy); err != nil {
		return nil, err
	}
	n.sticky = readSticky()
	err := n.terminals.noteStdio()
	if err != nil {
		return nil, err
	}
	if n.memory, err = memoryDevice(); err != nil {
		return nil, err
	}
	if n.shm, err = openShm(&c); err != nil {
		return nil, err
	}
	if n.paths, err = fsops.NewResolver(n.rules()); err != nil {
		return nil, err
	}
	n.sockets = sockfd.NewCopies()
	if c.Level >= sandbox.LevelReads || c.Judge != nil {
		n.execs = n.newChecker()
	}
	return n, nil
}

// anything may be found, because the kernel itself knows what the command may execute.
var anything = fsops.Rules{
	Access: func(string) fsops.Access { return fsops.Write },
	Leads:  func(string) bool { return true },
	Bound:  func(string) bool { return false },
}

// memoryDevice returns the device of files that exist only in memory. Their paths
// begin with a slash, as if they were in the root directory.
func memoryDevice() (uint64, error) {
	fd, err := unix.MemfdCreate("device", unix.MFD_CLOEXEC)
	if err != nil {
		return 0, os.NewSyscallError("memfd_create", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	return st.Dev, os.NewSyscallError("fstat", err)
}

// handlers has the method for each call that goes to a supervisor, by its name in
// package calls. On an architecture without a call, its method is never used.
var handlers = map[string]func(*request) callResult{
	"open":   (*request).open,
	"openat": (*request).openat,
	"creat":  (*request).creat,

	"mkdir":     (*request).mkdir,
	"mkdirat":   (*request).mkdirat,
	"mknod":     (*request).mknod,
	"mknodat":   (*request).mknodat,
	"rmdir":     (*request).rmdir,
	"unlink":    (*request).unlink,
	"unlinkat":  (*request).unlinkat,
	"rename":    (*request).rename,
	"renameat":  (*request).renameat,
	"renameat2": (*request).renameat2,
	"link":      (*request).link,
	"linkat":    (*request).linkat,
	"symlink":   (*request).symlink,
	"symlinkat": (*request).symlinkat,

	"truncate":     (*request).truncate,
	"chmod":        (*request).chmod,
	"fchmod":       (*request).fchmod,
	"fchmodat":     (*request).fchmodat,
	"fchmodat2":    (*request).fchmodat2,
	"chown":        (*request).chown,
	"lchown":       (*request).lchown,
	"fchown":       (*request).fchown,
	"fchownat":     (*request).fchownat,
	"utime":        (*request).utime,
	"utimes":       (*request).utimes,
	"futimesat":    (*request).futimesat,
	"utimensat":    (*request).utimensat,
	"setxattr":     (*request).setxattr,
	"lsetxattr":    (*request).lsetxattr,
	"fsetxattr":    (*request).fsetxattr,
	"removexattr":  (*request).removexattr,
	"lremovexattr": (*request).lremovexattr,
	"fremovexattr": (*request).fremovexattr,

	"access":            (*request).access,
	"faccessat":         (*request).faccessat,
	"faccessat2":        (*request).faccessat2,
	"newfstatat":        (*request).newfstatat,
	"statx":             (*request).statx,
	"stat":              (*request).stat,
	"lstat":             (*request).lstat,
	"readlink":          (*request).readlink,
	"readlinkat":        (*request).readlinkat,
	"chdir":             (*request).chdir,
	"statfs":            (*request).statfs,
	"getxattr":          (*request).getxattr,
	"lgetxattr":         (*request).lgetxattr,
	"listxattr":         (*request).listxattr,
	"llistxattr":        (*request).llistxattr,
	"inotify_add_watch": (*request).inotifyAddWatch,

	"execve":   (*request).exec,
	"execveat": (*request).exec,

	"umask": (*request).setUmask,

	"prlimit64":          (*request).limit,
	"sched_setaffinity":  (*request).limit,
	"sched_setscheduler": (*request).limit,
	"sched_setparam":     (*request).limit,
	"sched_setattr":      (*request).limit,
	"setpriority":        (*request).setpriority,
	"ioprio_set":         (*request).ioprioSet,

	"kill":              (*request).signal,
	"tkill":             (*request).signal,
	"tgkill":            (*request).signal,
	"rt_sigqueueinfo":   (*request).signal,
	"rt_tgsigqueueinfo": (*request).signal,
	"pidfd_send_signal": (*request).signal,

	"socket":   (*request).socket,
	"connect":  (*request).connect,
	"bind":     (*request).bind,
	"listen":   (*request).listen,
	"sendto":   (*request).sendto,
	"sendmsg":  (*request).sendmsg,
	"sendmmsg": (*request).sendmmsg,

	"getpeername": (*request).getpeername,
	"getsockname": (*request).getsockname,
	"getsockopt":  (*request).getsockopt,
	"setsockopt":  (*request).setsockopt,
	"recvfrom":    (*request).recvfrom,
	"recvmsg":     (*request).recvmsg,
	"recvmmsg":    (*request).recvmmsg,
}

// moving are the calls that can move a directory that another call may be
// using; and bind, because the kernel looks up its path again after the
// judgement.
var moving = []string{"rename", "renameat", "renameat2", "bind"}

// handler does one kind of call.
type handler struct {
	do    func(*request) callResult
	moves bool // one of moving
}

// byNumber returns the handlers by the call's number on this architecture.
func byNumber() map[int32]handler {
	all := map[int32]handler{}
	for _, call := range calls.Calls() {
		number := call.AMD64
		if runtime.GOARCH == "arm64" {
			number = call.ARM64
		}
		if do := handlers[call.Name]; number >= 0 && do != nil {
			all[int32(number)] = handler{do: do, moves: slices.Contains(moving, call.Name)}
		}
	}
	return all
}

// Serve answers the calls that come to listener, until the last process with the
// command's filter has ended. It is called once. The notifier must not be used
// afterwards.
//
// One worker receives the calls. For one busy program it is faster than several,
// which would take turns and wake each other up. A second one helps while more
// than one call waits.
func (n *Notifier) Serve(listener int) {
	n.listener = listener
	usernotify.WakeHere(listener)
	if n.config.Level == sandbox.NoLevel && n.execs != nil {
		// The view may have become the root of this process only now.
		var err error
		if n.paths, err = fsops.NewResolver(anything); err != nil {
			unix.Close(listener)
			return
		}
	}
	var second sync.WaitGroup
	// A signal that init gets for the command, or sends itself for its runtime, would interrupt a call
	// that init does for the command.
	second.Go(func() { usernotify.Undisturbed(n.help) })
	usernotify.Undisturbed(n.work)
	close(n.queue)
	second.Wait()
	if n.execs != nil {
		n.execs.Close()
	}
	if n.paths != nil {
		n.paths.Close()
	}
	if n.sockets != nil {
		n.sockets.Close()
	}
}

// work receives calls and answers them, one after the other. It wakes the second
// worker only when calls of several threads follow each other: one busy thread
// needs none, because it has nearly always made its next call before work looks.
func (n *Notifier) work() {
	const several = 16
	r := &request{n: n, callers: n.newCallers()}
	defer r.forgetAll()
	for last, turns := 0, 0; n.serveOne(r); last = r.thread() {
		if r.thread() == last {
			turns = 0
			continue
		}
		if turns++; turns >= several && len(n.queue) == 0 && usernotify.Waiting(n.listener) {
			turns = 0
			n.queue <- struct{}{}
		}
	}
}

// help is work while calls wait. It does not wait for more calls, because each call would
// then wake both workers.
func (n *Notifier) help() {
	r := &request{n: n, callers: n.newCallers()}
	defer r.forgetAll()
	for range n.queue {
		for usernotify.Waiting(n.listener) && n.serveOne(r) {
		}
	}
}

// serveOne receives a call and answers it. It returns false when no more calls can
// come.
func (n *Notifier) serveOne(r *request) bool {
	switch err := usernotify.Receive(n.listener, &r.call); err {
	case nil:
		r.end(r.answer())
		r.rest()
	case unix.EINTR:
	case unix.ENOENT: // the caller is gone, and perhaps all other processes too
		return !usernotify.HungUp(n.listener)
	default:
		// No worker receives calls any more, and waiting calls would wait for
		// ever. Without a listener they fail with ENOSYS.
		n.closing.Do(func() { unix.Close(n.listener) })
		return false
	}
	return true
}

// answer does or refuses the call.
func (r *request) answer() callResult {
	h := r.n.handlers[r.call.Number]
	switch {
	case h.do == nil: // the filter asks about a call without a handler
		return fail(unix.ENOSYS)
	case h.moves:
		r.n.names.Lock()
		defer r.n.names.Unlock()
	default:
		r.n.names.RLock()
		defer r.n.names.RUnlock()
	}
	return h.do(r)
}

// errGone is the error for a call whose caller no longer waits.
var errGone = errors.New("the call is gone")

// errOrNil returns the errno as an error; 0 is none.
func errOrNil(errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

// errnoOf returns the errno that the command gets for err.
func errnoOf(err error) syscall.Errno {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return unix.EPERM
}
