package helper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/sandbox"
)

const (
	// maxSockaddr is the size of struct sockaddr_storage: connect(2) takes no
	// longer address.
	maxSockaddr = 128
	// maxUnixAddr is the size of struct sockaddr_un, unix(7).
	maxUnixAddr = 110
	// maxConnecting bounds the calls that block at once, each of which takes a
	// thread; more fail with EAGAIN.
	maxConnecting = 256
)

// notifier answers the calls of connect(2) that the command's filter asks
// about, by doing them: on a copy of the address, which the command cannot
// change any more, and on a duplicate of the socket. No call is ever let
// through, since the kernel would read the address again.
//
// A pathname socket can be reached inside the writable roots only (sandbox.md
// 14.5). An abstract one never can: its peer could be anybody on the host,
// and what keeps processes apart there, Landlock's scope, does not bind init.
// Everything else is done as the command itself would do it, with the same ids
// and no capabilities. Three things differ: credentials that the peer asks for
// with SO_PEERCRED name init, a path through a link of procfs is refused, and a
// call that blocks is only interrupted by fatal signals.
type notifier struct {
	listener int
	policy   *sandbox.Policy
	blocked  chan struct{} // holds one for each call that blocks
}

func newNotifier(listener int, policy *sandbox.Policy) *notifier {
	return &notifier{listener: listener, policy: policy, blocked: make(chan struct{}, maxConnecting)}
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
	c, err := n.take(call)
	if err == errGone {
		return
	}
	if err != nil {
		respond(n.listener, call.id, errnoOf(err))
		return
	}
	if c.nonblocking() {
		respond(n.listener, call.id, c.connect())
		c.close()
		return
	}
	select {
	case n.blocked <- struct{}{}:
	default:
		respond(n.listener, call.id, unix.EAGAIN)
		c.close()
		return
	}
	go func() {
		respond(n.listener, call.id, c.connectUndisturbed())
		c.close()
		<-n.blocked
	}()
}

// connection is a call of connect that may be done.
type connection struct {
	socket int
	addr   []byte
	object int // the socket in the file system that addr leads to, or -1
}

func (c *connection) close() {
	unix.Close(c.socket)
	if c.object >= 0 {
		unix.Close(c.object)
	}
}

// errGone says that the thread which called does not wait any more.
var errGone = errors.New("the call is gone")

// take copies what the call is about and decides on the copy.
func (n *notifier) take(call *notification) (*connection, error) {
	fd, addr, length := int32(call.args[0]), call.args[1], int32(call.args[2])
	// In the order in which the kernel looks.
	c := &connection{object: -1}
	var err error
	if c.socket, err = duplicate(int(call.thread), int(fd)); err != nil {
		return nil, n.ifThere(call, err)
	}
	if length < 0 || length > maxSockaddr {
		c.close()
		return nil, unix.EINVAL
	}
	if c.addr, err = readMemory(int(call.thread), addr, int(length)); err != nil {
		c.close()
		return nil, n.ifThere(call, err)
	}
	domain, err := unix.GetsockoptInt(c.socket, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		c.close()
		return nil, err
	}
	path, pathname := "", false
	if domain == unix.AF_UNIX {
		path, pathname, err = unixPath(c.addr)
	}
	dir := unix.AT_FDCWD
	if err == nil && pathname && !strings.HasPrefix(path, "/") {
		dir, err = unix.Open(fmt.Sprintf("/proc/%d/cwd", call.thread), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err == nil {
			defer unix.Close(dir)
		}
	}
	// All of it is what the caller had only if it has been there all the time;
	// its number could be somebody else's by now.
	if !valid(n.listener, call.id) {
		err = errGone
	}
	if err == nil && pathname {
		c.object, err = n.open(dir, path)
	}
	if err == nil && pathname {
		c.addr = unixAddr(fmt.Sprintf("/proc/self/fd/%d", c.object))
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// ifThere returns err, or errGone if that is because the caller has ended.
func (n *notifier) ifThere(call *notification, err error) error {
	if !valid(n.listener, call.id) {
		return errGone
	}
	return err
}

// unixPath is the path in an address for a UNIX socket. It is none if the
// address means something else, which is up to the kernel.
func unixPath(addr []byte) (path string, pathname bool, err error) {
	const head = 2 // the family
	if len(addr) < head || binary.NativeEndian.Uint16(addr) != unix.AF_UNIX {
		return "", false, nil // AF_UNSPEC dissolves, others are EINVAL
	}
	if len(addr) == head || len(addr) > maxUnixAddr {
		return "", false, unix.EINVAL
	}
	path, _, _ = strings.Cut(string(addr[head:]), "\x00")
	if path == "" {
		return "", false, unix.EPERM // abstract
	}
	return path, true, nil
}

func unixAddr(path string) []byte {
	addr := binary.NativeEndian.AppendUint16(nil, unix.AF_UNIX)
	return append(append(addr, path...), 0)
}

// open finds the socket at path and decides on where it really is.
func (n *notifier) open(dir int, path string) (fd int, err error) {
	fd, err = unix.Openat2(dir, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC,
		// Of procfs, init has another view than the command.
		Resolve: unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return -1, err
	}
	if err := n.judge(fd); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func (n *notifier) judge(fd int) error {
	canonical, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return errnoOf(err)
	}
	if !strings.HasPrefix(canonical, "/") || n.policy.Access(canonical) != sandbox.Write || n.policy.DeniesFile(canonical) {
		return unix.EPERM
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return unix.ECONNREFUSED
	}
	return nil
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

// leaderOf is the process that a thread belongs to; proc_pid_status(5).
func leaderOf(thread int) (pid int, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", thread))
	if err != nil {
		return 0, errnoOf(err)
	}
	_, rest, _ := strings.Cut(string(status), "\nTgid:")
	line, _, _ := strings.Cut(rest, "\n")
	if pid, err = strconv.Atoi(strings.TrimSpace(line)); err != nil {
		return 0, unix.ESRCH
	}
	return pid, nil
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

// nonblocking tells whether connect returns at once. The flag belongs to the
// command as well; if it lies, it holds up nobody but itself.
func (c *connection) nonblocking() bool {
	flags, err := unix.FcntlInt(uintptr(c.socket), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_NONBLOCK != 0
}

// connectUndisturbed is connect on a thread that no signal interrupts.
func (c *connection) connectUndisturbed() syscall.Errno {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, was unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &was); err != nil {
		return errnoOf(err)
	}
	errno := c.connect()
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &was, nil); err != nil {
		runtime.Goexit() // cannot be; then the thread must not be used again
	}
	return errno
}

// errnoOf is what the command gets for err.
func errnoOf(err error) syscall.Errno {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return unix.EPERM
}
