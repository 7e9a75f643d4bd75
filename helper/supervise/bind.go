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

	"github.com/execagent/execagent/internal/caps"
	"github.com/execagent/execagent/internal/thread"
	"github.com/execagent/execagent/internal/usernotify"
)

// Abstract names belong to the whole host: a command that took the name of a
// service which is not running would answer in its place. So they are refused.
// Every other name is taken as the command itself would take it.

// answerBind does a call of bind, and closes a.
func (n *Notifier) answerBind(call *usernotify.Call, a *address) {
	if a.domain != unix.AF_UNIX || len(a.sockaddr) < 2 || binary.NativeEndian.Uint16(a.sockaddr) != unix.AF_UNIX {
		usernotify.Respond(n.listener, call.ID, a.bind())
		a.close()
		return
	}
	umask, err := n.judgeBind(call, a)
	if err != nil {
		a.close()
		n.refuse(call, err)
		return
	}
	n.apart(call, a, func() syscall.Errno { return n.bindApart(a, umask) })
}

// judgeBind decides on a name for a UNIX socket, and finds out what the caller
// would make its file with.
func (n *Notifier) judgeBind(call *usernotify.Call, a *address) (umask int, err error) {
	if len(a.sockaddr) == 2 {
		return 0, unix.EPERM // the kernel would choose an abstract name
	}
	if _, _, err := unixPath(a.sockaddr); err != nil {
		return 0, err
	}
	if err := n.openDir(call, a); err != nil {
		return 0, err
	}
	umask, err = thread.Status(int(call.Thread), "Umask", 8)
	return umask, n.ifThere(call, err)
}

// A name in the file system has to be bound as it is written, since
// getsockname(2) tells it, and by a process that sees of procfs no more than the
// command: below the descriptors of init lie directories outside the view. So
// init starts itself once more, with the caller's working directory and umask.

// bindArg is the third of six arguments of that process; umask and address
// follow, and an empty one.
const bindArg = "bind"

// IsBind tells whether args make this process one that is to call [BindMain].
func IsBind(args []string) bool { return len(args) == 6 && args[2] == bindArg && args[5] == "" }

// The descriptors of that process.
const bindSocketFD, bindDirFD, bindResultFD = 3, 4, 5

// bindApart starts it and returns what bind(2) has said there.
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
		return err // init reaps it as it does all that is left behind
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
			return unix.EPERM // it was killed
		default:
			return syscall.Errno(binary.NativeEndian.Uint32(errno))
		}
	}
}

// withoutPrivileges executes something that must get no capabilities by it, as
// what uid 0 executes would: from a thread that has none and may gain none.
func withoutPrivileges(execute func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if err := caps.DropThread(); err != nil {
		return err
	}
	return execute()
}

// BindMain is the main of such a process: it binds the one name in its arguments.
func BindMain(args []string) error {
	if err := caps.Check(); err != nil {
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
