package supervise

import (
	"encoding/binary"
	"encoding/hex"
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
)

// Abstract names belong to the whole host: a command could take the name of a
// service that is not running and answer in its place. So binding an abstract
// name is refused. Every other address is bound as the command itself would bind
// it.

// bind does bind(2), or refuses it.
func (r *request) bind() callResult {
	a, err := r.takeAddress()
	if err == errNoCopy {
		return fail(unix.EINVAL) // it has a name already, or a peer
	}
	if err != nil {
		return fail(err)
	}
	if r.n.config.Proxy != nil && a.domain != unix.AF_UNIX {
		at, _, ok := inetAddress(a.sockaddr)
		a.close()
		if a.held.Questions && ok && at.Port() == 0 {
			return callResult{} // getsockname(2) says that it has one, as if the kernel had chosen one
		}
		return fail(unix.EPERM) // the port would be the host's, and others could connect
	}
	if a.domain != unix.AF_UNIX || a.family() != unix.AF_UNIX {
		defer a.close()
		return result(errOrNil(r.n.bindHost(a)))
	}
	if a.held != nil {
		defer a.close()
		return result(r.bindPath(a))
	}
	umask, err := r.judgeBind(a)
	if err != nil {
		a.close()
		return fail(err)
	}
	return r.apart(func(*request) callResult {
		defer a.close()
		return result(errOrNil(r.n.bindApart(a, umask)))
	}, a.close)
}

// bindHost binds an address that is no path. The address may be occupied only
// by a socket that the command has closed, but of which there is still a copy.
func (n *Notifier) bindHost(a *address) syscall.Errno {
	errno := a.bind()
	if errno == unix.EADDRINUSE && a.held != nil && n.sockets.Sweep() {
		errno = a.bind()
	}
	return errno
}

// judgeBind decides whether the name of a UNIX socket may be bound, opens the
// caller's working directory, and returns the caller's umask. The file of the
// socket is made with both.
func (r *request) judgeBind(a *address) (umask int, err error) {
	if len(a.sockaddr) == 2 {
		return 0, unix.EPERM // the kernel would choose an abstract name
	}
	if _, _, err := unixPath(a.sockaddr); err != nil {
		return 0, err
	}
	if err := r.openDir(a); err != nil {
		return 0, err
	}
	umask, err = linux.ThreadStatus(r.thread(), "Umask", 8)
	return umask, r.there(err)
}

// A name in the file system must be bound as the command wrote it, because
// getsockname(2) later returns that name to the command. So init cannot bind
// another path to the same directory, such as /proc/self/fd/N/name.
//
// Nor can init itself bind the name as written. The name may lead through
// /proc/self/fd or /proc/PID/fd, and init has descriptors of directories
// outside the view. So init starts itself again, with the caller's working
// directory and umask and nearly no descriptors: that process binds the name,
// reports the errno, and ends.

// bindArg is the third of the six arguments of that process. After it come the
// umask, the address, and an empty argument, so that no other command line looks
// like this one.
const bindArg = "bind"

// IsBind reports whether a process with these arguments must call [BindMain].
func IsBind(args []string) bool { return len(args) == 6 && args[2] == bindArg && args[5] == "" }

// The descriptors of that process: the socket to be bound, the caller's working
// directory, and the pipe for the errno.
const bindSocketFD, bindDirFD, bindResultFD = 3, 4, 5

// bindApart starts that process and returns the errno of bind(2) there. While
// [maxBinding] such processes run, it waits for one to end.
func (n *Notifier) bindApart(a *address, umask int) syscall.Errno {
	n.binding <- struct{}{}
	defer func() { <-n.binding }()
	var result [2]int
	if err := unix.Pipe2(result[:], unix.O_CLOEXEC); err != nil {
		return errnoOf(err)
	}
	defer unix.Close(result[0])
	err := withoutPrivileges(func() error {
		_, err := syscall.ForkExec("/proc/self/exe",
			append(slices.Clone(n.config.Self), bindArg, strconv.FormatInt(int64(umask), 8), hex.EncodeToString(a.sockaddr), ""),
			&syscall.ProcAttr{
				Env:   os.Environ(),
				Files: []uintptr{0, 1, 2, uintptr(a.socket), uintptr(a.dir), uintptr(result[1])},
			})
		return err // init reaps the process, like every orphan
	})
	unix.Close(result[1])
	if err != nil {
		return errnoOf(err)
	}
	errno := make([]byte, 4)
	for {
		size, err := unix.Read(result[0], errno)
		switch {
		case err == unix.EINTR:
		case err != nil || size != len(errno):
			return unix.EPERM // the process has ended without an answer: it failed, or was killed
		default:
			return syscall.Errno(binary.NativeEndian.Uint32(errno))
		}
	}
}

// withoutPrivileges calls execute on a thread that has no capabilities and has
// no_new_privs set. Otherwise a program that uid 0 executes would get
// capabilities back. The thread stays like that for ever.
func withoutPrivileges(execute func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if err := linux.DropThreadCaps(); err != nil {
		return err
	}
	return execute()
}

// BindMain is the main of a process that [Notifier] starts: it binds the socket
// on its descriptor 3 to the one address in args, and writes the errno to
// descriptor 5. An error means that it has written nothing, because it has
// capabilities, or args or the pipe are wrong.
func BindMain(args []string) error {
	if err := linux.CheckCaps(); err != nil {
		return err
	}
	umask, err := strconv.ParseUint(args[3], 8, 16)
	if err != nil {
		return err
	}
	sockaddr, err := hex.DecodeString(args[4])
	if err != nil {
		return err
	}
	a := &address{socket: bindSocketFD, sockaddr: sockaddr}
	var errno syscall.Errno
	if err := unix.Fchdir(bindDirFD); err != nil {
		errno = errnoOf(err)
	} else {
		unix.Umask(int(umask))
		errno = a.bind()
	}
	_, err = unix.Write(bindResultFD, binary.NativeEndian.AppendUint32(nil, uint32(errno)))
	return err
}
