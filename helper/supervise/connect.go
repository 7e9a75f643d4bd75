package supervise

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/usernotify"
	"github.com/execagent/execagent/sandbox"
)

// A pathname socket can be reached inside the writable roots only (sandbox.md
// 14.5); in a temporary directory only if it was made since the command was
// started: a session's terminals, displays and agents listen there, and a command
// that reaches them acts outside. An abstract socket can never be reached: its peer
// could be any process of the host, and Landlock's scope, which keeps processes
// apart there, does not bind init. Nor can the agent's own listeners, whose clients
// are confined by nothing.
//
// Everything else is done as the command itself would do it, with the same ids
// and no capabilities. Three things differ: credentials that the peer asks for
// with SO_PEERCRED name init, a path through a link of procfs is refused, and a
// call that blocks is only interrupted by fatal signals.

// answerConnect does a call of connect, and closes a.
func (n *Notifier) answerConnect(call *usernotify.Call, a *address) {
	if err := n.judgeConnect(call, a); err != nil {
		a.close()
		n.refuse(call, err)
		return
	}
	if a.nonblocking() {
		usernotify.Respond(n.listener, call.ID, a.connect())
		a.close()
		return
	}
	n.apart(call, a, a.connectUndisturbed)
}

// judgeConnect decides on a call of connect. An address that leads to a socket in
// the file system names that object then.
func (n *Notifier) judgeConnect(call *usernotify.Call, a *address) error {
	if n.isAgent(a) {
		return unix.EPERM
	}
	if a.domain != unix.AF_UNIX {
		return nil
	}
	path, pathname, err := unixPath(a.sockaddr)
	if err != nil || !pathname {
		return err
	}
	if !strings.HasPrefix(path, "/") {
		if err := n.openDir(call, a); err != nil {
			return err
		}
	}
	if err := n.find(a, path); err != nil {
		return err
	}
	a.sockaddr = unixAddr(fmt.Sprintf("/proc/self/fd/%d", a.object))
	return nil
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

// find finds the socket at path and decides on where it really is.
func (n *Notifier) find(a *address, path string) (err error) {
	dir := unix.AT_FDCWD
	if a.dir >= 0 {
		dir = a.dir
	}
	a.object, err = unix.Openat2(dir, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC,
		// Of procfs, init has another view than the command.
		Resolve: unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return err
	}
	return n.judge(a.object)
}

func (n *Notifier) judge(fd int) error {
	canonical, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return errnoOf(err)
	}
	if !strings.HasPrefix(canonical, "/") || n.config.Policy.Access(canonical) != sandbox.Write || n.config.Policy.DeniesFile(canonical) {
		return unix.EPERM
	}
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE|unix.STATX_BTIME, &st); err != nil {
		return err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFSOCK:
		return unix.ECONNREFUSED
	case n.config.Policy.Temporary(canonical) && !n.isNew(&st):
		return unix.EPERM
	}
	return nil
}

// isNew tells whether a file was made since the command was started: its birth
// is the one time that nobody can change. Where the file system keeps none, no
// file is new.
func (n *Notifier) isNew(st *unix.Statx_t) bool {
	if st.Mask&unix.STATX_BTIME == 0 {
		return false
	}
	return st.Btime.Sec > n.begun.Sec || st.Btime.Sec == n.begun.Sec && int64(st.Btime.Nsec) >= n.begun.Nsec
}

// nonblocking tells whether connect returns at once. The flag belongs to the
// command as well; a command that changes it meanwhile holds up only itself.
func (a *address) nonblocking() bool {
	flags, err := unix.FcntlInt(uintptr(a.socket), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_NONBLOCK != 0
}

// connectUndisturbed is connect on a thread that no signal interrupts.
func (a *address) connectUndisturbed() syscall.Errno {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, was unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &was); err != nil {
		return errnoOf(err)
	}
	errno := a.connect()
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &was, nil); err != nil {
		runtime.Goexit() // cannot be; then the thread must not be used again
	}
	return errno
}
