package helper

import (
	"encoding/binary"
	"encoding/hex"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// An abstract name is the host's: whoever takes the one of a service that is
// not running answers for it. So does who takes the agent's port on another
// address of this host than the agent has. Both are refused; every other name
// is taken as the command itself would take it.

// answerBind does a call of bind, which owns a.
func (n *notifier) answerBind(call *notification, a *address) {
	family := -1
	if len(a.sockaddr) >= 2 {
		family = int(binary.NativeEndian.Uint16(a.sockaddr))
	}
	switch {
	case a.domain == unix.AF_UNIX && family == unix.AF_UNIX:
		n.bindUnix(call, a)
		return
	case a.domain != unix.AF_UNIX && n.isAgentPort(a):
		n.refuse(call, unix.EADDRINUSE)
	default:
		respond(n.listener, call.id, a.bind())
	}
	a.close()
}

// isAgentPort tells whether a is a port of the agent's. Every family of TCP has
// it at the same place, and the kernel takes some addresses without a family.
func (n *notifier) isAgentPort(a *address) bool {
	return len(a.sockaddr) >= 4 && slices.Contains(n.ports, binary.BigEndian.Uint16(a.sockaddr[2:])) && a.isStream()
}

// bindUnix takes a name for a UNIX socket.
func (n *notifier) bindUnix(call *notification, a *address) {
	_, _, err := unixPath(a.sockaddr)
	if len(a.sockaddr) == 2 {
		err = unix.EPERM // the kernel would choose an abstract name
	}
	dir, umask := -1, 0
	if err == nil {
		dir, err = n.workingDirectory(call)
	}
	if err == nil {
		umask, err = umaskOf(int(call.thread))
		err = n.ifThere(call, err)
	}
	if err != nil {
		if dir >= 0 {
			unix.Close(dir)
		}
		a.close()
		n.refuse(call, err)
		return
	}
	n.apart(call, a, func() syscall.Errno {
		defer unix.Close(dir)
		return n.bindApart(a, dir, umask)
	})
}

// A name in the file system has to be bound as it is written, since
// getsockname(2) tells it, and by a process that sees of procfs no more than the
// command: below the descriptors of init lie directories outside the view. So
// init starts itself once more, with the caller's working directory and umask.

// bindArg is the third of six arguments of that process; umask and address
// follow, and an empty one.
const bindArg = "bind"

func isBind(args []string) bool { return len(args) == 6 && args[2] == bindArg && args[5] == "" }

// The descriptors of that process.
const bindSocketFD, bindDirFD, bindResultFD = 3, 4, 5

// bindApart starts it and returns what bind(2) has said there.
func (n *notifier) bindApart(a *address, dir, umask int) syscall.Errno {
	n.binding <- struct{}{}
	defer func() { <-n.binding }()
	var result [2]int
	if err := unix.Pipe2(result[:], unix.O_CLOEXEC); err != nil {
		return errnoOf(err)
	}
	defer unix.Close(result[0])
	err := withoutPrivileges(func() error {
		_, err := syscall.ForkExec("/proc/self/exe",
			[]string{n.argv0, InitArg, bindArg, strconv.FormatInt(int64(umask), 8), hex.EncodeToString(a.sockaddr), ""},
			&syscall.ProcAttr{
				Env:   os.Environ(),
				Files: []uintptr{0, 1, 2, uintptr(a.socket), uintptr(dir), uintptr(result[1])},
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
// what uid 0 executes would.
func withoutPrivileges(execute func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return execute()
}

// bindMain is that process.
func bindMain(args []string) error {
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

// umaskOf is that of a thread; proc_pid_status(5).
func umaskOf(thread int) (int, error) {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(thread) + "/status")
	if err != nil {
		return 0, errnoOf(err)
	}
	_, rest, _ := strings.Cut(string(status), "\nUmask:")
	line, _, _ := strings.Cut(rest, "\n")
	mask, err := strconv.ParseUint(strings.TrimSpace(line), 8, 16)
	if err != nil {
		return 0, unix.ESRCH
	}
	return int(mask), nil
}
