package helper

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/sandbox"
)

const (
	// maxSockaddr is the size of struct sockaddr_storage: connect(2) and bind(2)
	// take no longer address.
	maxSockaddr = 128
	// maxUnixAddr is the size of struct sockaddr_un, unix(7).
	maxUnixAddr = 110
	// maxConnecting bounds the calls that block at once, each of which takes a
	// thread; more fail with EAGAIN.
	maxConnecting = 256
	// maxBinding bounds the processes that bind names in the file system.
	maxBinding = 4
)

// notifier answers the calls of connect(2) and bind(2) that the command's filter
// asks about, by doing them: on a copy of the address, which the command cannot
// change any more, and on a duplicate of the socket. No call is ever let
// through, since the kernel would read the address again.
type notifier struct {
	listener int
	policy   *sandbox.Policy
	argv0    string        // the agent's own
	begun    unix.Timespec // before the command was
	ports    []uint16      // of the agent's own listeners
	blocked  chan struct{} // holds one for each call that blocks
	binding  chan struct{} // holds one for each process of bindApart
}

// newNotifier notes the time before the command starts, on the clock that file
// systems use for births. The caller sets listener once the filter is loaded.
func newNotifier(policy *sandbox.Policy, c *config) (*notifier, error) {
	n := &notifier{
		policy: policy, argv0: c.Argv0, ports: c.AgentPorts,
		blocked: make(chan struct{}, maxConnecting), binding: make(chan struct{}, maxBinding),
	}
	err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &n.begun)
	return n, os.NewSyscallError("clock_gettime", err)
}

// serve answers until nobody is left who could ask.
func (n *notifier) serve() {
	for {
		call, err := receiveCall(n.listener)
		switch err {
		case nil:
			n.answer(call)
		case unix.EINTR:
		case unix.ENOENT: // who asked is gone; maybe all are
			if hungUp(n.listener) {
				return
			}
		default:
			// Calls that wait would wait for good: closed, they get ENOSYS.
			unix.Close(n.listener)
			return
		}
	}
}

// answer does one call, in a thread of its own if it may block.
func (n *notifier) answer(call *notification) {
	a, err := n.take(call)
	if err != nil {
		n.refuse(call, err)
		return
	}
	if call.number == unix.SYS_BIND {
		n.answerBind(call, a)
	} else {
		n.answerConnect(call, a)
	}
}

// refuse ends a call with the error, unless nobody waits for it.
func (n *notifier) refuse(call *notification, err error) {
	if err != errGone {
		respond(n.listener, call.id, errnoOf(err))
	}
}

// apart does a call in a goroutine of its own, of which there is a bounded
// number, and closes a.
func (n *notifier) apart(call *notification, a *address, do func() syscall.Errno) {
	select {
	case n.blocked <- struct{}{}:
	default:
		respond(n.listener, call.id, unix.EAGAIN)
		a.close()
		return
	}
	go func() {
		respond(n.listener, call.id, do())
		a.close()
		<-n.blocked
	}()
}

// address is what a call of connect or bind is about. It owns its descriptors.
type address struct {
	socket   int // a duplicate
	domain   int
	sockaddr []byte // a copy
	object   int    // the socket in the file system that it leads to, or -1
	dir      int    // the caller's working directory, or -1
}

func (a *address) close() {
	for _, fd := range []int{a.socket, a.object, a.dir} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// errGone says that the thread which called does not wait any more.
var errGone = errors.New("the call is gone")

// take copies what the call is about.
func (n *notifier) take(call *notification) (*address, error) {
	fd, addr, length := int32(call.args[0]), call.args[1], int32(call.args[2])
	// In the order in which the kernel looks.
	a := &address{object: -1, dir: -1}
	var err error
	if a.socket, err = duplicate(int(call.thread), int(fd)); err != nil {
		return nil, n.ifThere(call, err)
	}
	if length < 0 || length > maxSockaddr {
		a.close()
		return nil, unix.EINVAL
	}
	if a.sockaddr, err = readMemory(int(call.thread), addr, int(length)); err == nil {
		a.domain, err = unix.GetsockoptInt(a.socket, unix.SOL_SOCKET, unix.SO_DOMAIN)
	}
	// All of it is what the caller had only if it has been there all the time;
	// its number could be somebody else's by now.
	if err = n.ifThere(call, err); err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

// ifThere returns err, or errGone if the caller has ended.
func (n *notifier) ifThere(call *notification, err error) error {
	if !valid(n.listener, call.id) {
		return errGone
	}
	return err
}

// openDir opens the working directory of the caller.
func (n *notifier) openDir(call *notification, a *address) (err error) {
	a.dir, err = unix.Open(fmt.Sprintf("/proc/%d/cwd", call.thread), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return n.ifThere(call, err)
}

// duplicate takes a descriptor of a thread.
func duplicate(thread, fd int) (int, error) {
	const ofThread = unix.O_EXCL // PIDFD_THREAD, Linux 6.9
	pidfd, err := unix.PidfdOpen(thread, ofThread)
	if err == unix.EINVAL {
		// Threads nearly always share their descriptors. If not, this is
		// another one of the same program, and judged as such.
		var leader int
		if leader, err = leaderOf(thread); err == nil {
			pidfd, err = unix.PidfdOpen(leader, 0)
		}
	}
	if err != nil {
		return -1, err
	}
	defer unix.Close(pidfd)
	socket, err := unix.PidfdGetfd(pidfd, fd, 0)
	return socket, err
}

// leaderOf is the process that a thread belongs to.
func leaderOf(thread int) (pid int, err error) { return statusField(thread, "Tgid", 10) }

// statusField is a number that the kernel tells of a thread; proc_pid_status(5).
func statusField(thread int, name string, base int) (int, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", thread))
	if err != nil {
		return 0, errnoOf(err)
	}
	_, rest, _ := strings.Cut(string(status), "\n"+name+":")
	line, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.ParseInt(strings.TrimSpace(line), base, 32)
	if err != nil {
		return 0, unix.ESRCH
	}
	return int(n), nil
}

// readMemory copies n bytes at addr of a thread.
func readMemory(thread int, addr uint64, n int) ([]byte, error) {
	b := make([]byte, n)
	if n == 0 {
		return b, nil
	}
	local := unix.Iovec{Base: &b[0]}
	local.SetLen(n)
	got, err := unix.ProcessVMReadv(thread, []unix.Iovec{local}, []unix.RemoteIovec{{Base: uintptr(addr), Len: n}}, 0)
	if err != nil {
		return nil, err
	}
	if got != n {
		return nil, unix.EFAULT
	}
	return b, nil
}

// errnoOf is what the command gets for err.
func errnoOf(err error) syscall.Errno {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return unix.EPERM
}
