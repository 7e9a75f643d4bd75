package supervise

import (
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/internal/linux/usernotify"
	"github.com/execagent/execagent/sandbox"
)

// request is one call under way. It belongs to the worker that received it, or to
// the goroutine that [request.apart] started. Its owner answers it, once.
type request struct {
	n    *Notifier
	call usernotify.Call
	// callers are the callers that the worker remembers; nil in a goroutine of apart.
	callers callers
	giver   usernotify.Giver
	text    linux.PathBuffer // where paths are read to
	left    []int            // descriptors to close when the call is done
	met     bool             // a name was found in the caller's directory, which the worker remembers
}

// callResult is the result of a call. The zero value is success with the value 0.
type callResult struct {
	how   outcome
	value int64         // that the call returns
	errno syscall.Errno // with which it fails
	// fd is a descriptor for the caller. It is closed here afterwards.
	fd          int
	closeOnExec bool
	// alone closes fd here before the caller continues, which takes longer.
	alone bool
	after func(error) // called when the caller has fd, or gets an error instead; may be nil
}

type outcome uint8

const (
	returned  outcome = iota // with value
	failed                   // with errno
	given                    // a descriptor
	continued                // the kernel makes the call
	postponed                // another goroutine answers, or has answered
)

// fail ends a call with the errno of err; with EPERM if err has none. A call whose
// caller is gone gets no answer.
func fail(err error) callResult {
	if err == errGone {
		return callResult{how: postponed}
	}
	return callResult{how: failed, errno: errnoOf(err)}
}

// result ends a call with err, or with success and the value 0.
func result(err error) callResult {
	if err != nil {
		return fail(err)
	}
	return callResult{}
}

// give ends a call with a new descriptor of the caller. The request owns fd.
func give(fd int, closeOnExec bool) callResult {
	return callResult{how: given, fd: fd, closeOnExec: closeOnExec}
}

// proceed lets the kernel make the call, which reads all arguments again. Nothing about
// contents may depend on memory that the command could have changed since the
// judgement; metadata may (stat.go), and messages of sockets that may reach everybody
// (send.go).
func proceed() callResult { return callResult{how: continued} }

// end answers the call.
func (r *request) end(a callResult) {
	switch a.how {
	case returned:
		usernotify.Return(r.n.listener, r.call.ID, a.value)
	case failed:
		usernotify.Respond(r.n.listener, r.call.ID, a.errno)
	case given:
		number, ended, err := r.giver.Give(r.n.listener, &r.call, a.fd, a.closeOnExec, a.alone)
		unix.Close(a.fd)
		if a.after != nil {
			a.after(err)
		}
		switch {
		case ended:
		case err == nil:
			usernotify.Return(r.n.listener, r.call.ID, int64(number))
		case err != unix.ENOENT: // such as EMFILE
			usernotify.Respond(r.n.listener, r.call.ID, errnoOf(err))
		}
	case continued:
		_ = usernotify.Continue(r.n.listener, r.call.ID)
	case postponed:
	}
}

// apart continues the call in its own goroutine, on a thread that blocks all
// signals, because do may block. If MaxBlocked calls already do so, the call fails
// with EAGAIN, and otherwise is called instead of do, to release what do would have
// released.
func (r *request) apart(do func(*request) callResult, otherwise func()) callResult {
	select {
	case r.n.blocked <- struct{}{}:
	default:
		otherwise()
		return fail(unix.EAGAIN)
	}
	own := *r // the worker uses r for the next call
	own.callers, own.left = nil, nil
	go func() {
		defer func() { <-r.n.blocked }()
		usernotify.Undisturbed(func() { own.end(do(&own)) })
	}()
	return callResult{how: postponed}
}

// thread is the number of the calling thread, as seen by this process.
func (r *request) thread() int { return int(r.call.Thread) }

// int returns an argument that the kernel takes as int.
func (r *request) int(arg int) int { return int(int32(r.call.Args[arg])) }

// pointer returns an argument that the kernel takes as an address or a long.
func (r *request) pointer(arg int) uint64 { return r.call.Args[arg] }

// there returns err, or errGone if the caller no longer waits. All facts about
// the caller were read by its number, which could now be another thread's. If
// the caller still waits, it has been there all the time. So there must be
// called after the last such read, and before anything is done.
func (r *request) there(err error) error {
	if !usernotify.Valid(r.n.listener, r.call.ID) {
		return errGone
	}
	return err
}

// restart ends a call that the kernel then makes again, or ends with EINTR, as the handler of the
// caller's signal wants it (ERESTARTSYS of the kernel's include/linux/errno.h).
const restart = syscall.Errno(512)

// interrupted returns the error that ends a waiting call because the caller is gone or has a signal
// to handle (signal(7)), and nil while the call may wait on. The kernel wakes the caller for fatal
// signals alone (SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV). Without a signal the caller would see the
// number of restart, so a signal that another thread may take is EINTR.
func (r *request) interrupted() error {
	own, shared, err := linux.PendingSignals(r.thread())
	switch {
	case r.there(nil) != nil:
		return errGone
	case err != nil:
		return nil
	case own != 0:
		return restart
	case shared != 0:
		return unix.EINTR
	}
	return nil
}

// path returns a copy of the path that an argument points to.
func (r *request) path(arg int) (string, error) {
	return linux.ReadString(r.thread(), r.pointer(arg), &r.text)
}

// memory returns a copy of n bytes of the caller's memory.
func (r *request) memory(addr uint64, n int) ([]byte, error) {
	return linux.ReadMemory(r.thread(), addr, n)
}

// store writes to the caller's memory. In a view of its own the command may have a read-only procfs, and
// a user namespace, in which only processes of the command can be written.
func (r *request) store(addr uint64, b []byte) error {
	if r.n.config.Level != sandbox.NoLevel {
		return linux.WriteMemory(r.thread(), addr, b, func() error { return r.there(nil) })
	}
	if err := r.there(nil); err != nil {
		return err
	}
	return linux.WriteMemoryOf(r.thread(), addr, b)
}

// descriptor opens the object of the caller's descriptor fd, with O_PATH. A
// number that is not open there is EBADF.
func (r *request) descriptor(fd int) (int, error) {
	own, err := r.ofCaller("fd/"+strconv.Itoa(fd), unix.O_PATH)
	if err == unix.ENOENT {
		err = unix.EBADF
	}
	return own, err
}

// isOpen reports whether the caller's descriptor fd is open for reading or
// writing, or for ioctl(2) alone, and not with O_PATH.
func (r *request) isOpen(fd int) (bool, error) {
	// The mode of the link shows reading and writing, in one call.
	if known := r.caller(); known != nil {
		var st unix.Stat_t
		err := unix.Fstatat(known.dir, "fd/"+strconv.Itoa(fd), &st, unix.AT_SYMLINK_NOFOLLOW)
		if r.met = r.met || err == nil; err == nil && st.Mode&0o600 != 0 {
			return true, nil
		}
	}
	own, err := r.ofCaller("fdinfo/"+strconv.Itoa(fd), unix.O_RDONLY)
	if err == unix.ENOENT {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer unix.Close(own)
	var b [64]byte // the flags are in the second line, proc_pid_fdinfo(5)
	n, err := unix.Read(own, b[:])
	if err != nil {
		return false, err
	}
	_, rest, _ := strings.Cut(string(b[:n]), "\nflags:\t")
	octal, _, whole := strings.Cut(rest, "\n")
	flags, err := strconv.ParseUint(octal, 8, 32)
	return whole && err == nil && flags&unix.O_PATH == 0, nil
}

// cwd opens the working directory of the caller, with O_PATH.
func (r *request) cwd() (int, error) { return r.ofCaller("cwd", unix.O_PATH|unix.O_DIRECTORY) }
