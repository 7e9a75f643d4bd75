package supervise

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/thread"
	"github.com/execagent/execagent/internal/usernotify"
	"github.com/execagent/execagent/sandbox"
)

const (
	// maxSockaddr is the size of struct sockaddr_storage: connect(2) and bind(2)
	// take no longer address.
	maxSockaddr = 128
	// maxUnixAddr is the size of struct sockaddr_un, unix(7).
	maxUnixAddr = 110
	// MaxBlocked bounds the calls of one command that may block at the same
	// time: each takes a thread of init. One more fails with EAGAIN.
	MaxBlocked = 256
	// maxBinding bounds the processes that bind names in the file system at the
	// same time. Further calls wait; they count among the MaxBlocked.
	maxBinding = 4
)

// Notifier does the calls of connect(2) and bind(2) that the command's filter
// leaves to a listener: on a copy of the address, which the command cannot
// change any more, and on a duplicate of the socket. It never lets the kernel
// continue a call of the command itself: the kernel would read the address
// again, and the command could have changed it by then.
type Notifier struct {
	config   Config
	listener int
	begun    unix.Timespec // a time before the command was started
	blocked  chan struct{} // holds an element for each call that may block
	binding  chan struct{} // holds an element for each process of bindApart
}

// Config is what a [Notifier] has to know of the command and of the agent.
type Config struct {
	// Policy is the command's, with canonical paths.
	Policy *sandbox.Policy
	// Ports are those of the agent's own listeners.
	Ports []uint16
	// Self is the argv[0] of this program, and the argument that makes it a
	// helper. To bind a name a notifier starts the program anew with these and
	// more arguments: the helper asks [IsBind], and then calls [BindMain].
	Self []string
}

// New returns a notifier for a command that is not started yet: it notes the
// time, on the clock that file systems take times of birth from.
func New(c Config) (*Notifier, error) {
	n := &Notifier{config: c, blocked: make(chan struct{}, MaxBlocked), binding: make(chan struct{}, maxBinding)}
	err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &n.begun)
	return n, os.NewSyscallError("clock_gettime", err)
}

// Serve answers the calls that come to listener, until the last process with the
// command's filter has ended. It is called once.
func (n *Notifier) Serve(listener int) {
	n.listener = listener
	for {
		call, err := usernotify.Receive(n.listener)
		switch err {
		case nil:
			n.answer(call)
		case unix.EINTR:
		case unix.ENOENT: // the caller is gone, and maybe all other processes too
			if usernotify.HungUp(n.listener) {
				return
			}
		default:
			// Nobody receives calls any more, and those that wait would wait for
			// good. Without a listener they fail with ENOSYS.
			unix.Close(n.listener)
			return
		}
	}
}

// answer does or refuses one call, in a goroutine of its own if it may block.
func (n *Notifier) answer(call *usernotify.Call) {
	a, err := n.take(call)
	if err != nil {
		n.refuse(call, err)
		return
	}
	switch call.Number {
	case unix.SYS_BIND:
		n.answerBind(call, a)
	case unix.SYS_CONNECT:
		n.answerConnect(call, a)
	default: // the filter asks about a call that nobody answers here
		n.refuse(call, unix.ENOSYS)
		a.close()
	}
}

// refuse ends a call with the errno of err, unless the caller is gone.
func (n *Notifier) refuse(call *usernotify.Call, err error) {
	if err != errGone {
		usernotify.Respond(n.listener, call.ID, errnoOf(err))
	}
}

// apart calls do in a goroutine of its own, ends the call with the result, and
// closes a. If MaxBlocked goroutines run already the call fails with EAGAIN.
func (n *Notifier) apart(call *usernotify.Call, a *address, do func() syscall.Errno) {
	select {
	case n.blocked <- struct{}{}:
	default:
		usernotify.Respond(n.listener, call.ID, unix.EAGAIN)
		a.close()
		return
	}
	go func() {
		usernotify.Respond(n.listener, call.ID, do())
		a.close()
		<-n.blocked
	}()
}

// address holds the arguments of a call of connect or bind. It owns its
// descriptors.
type address struct {
	socket   int    // a duplicate of the caller's
	domain   int    // of the socket, such as AF_UNIX
	sockaddr []byte // a copy of the address, or what judgeConnect has put there
	object   int    // the socket in the file system that sockaddr leads to, or -1
	dir      int    // the caller's working directory, or -1
}

// close closes the descriptors of a, which are not the command's own.
func (a *address) close() {
	for _, fd := range []int{a.socket, a.object, a.dir} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// errGone is the error for a call whose caller does not wait any more.
var errGone = errors.New("the call is gone")

// take copies the arguments of a call: it duplicates the socket, and reads the
// address.
func (n *Notifier) take(call *usernotify.Call) (*address, error) {
	fd, addr, length := int32(call.Args[0]), call.Args[1], int32(call.Args[2])
	// The checks have the order of the kernel's, so that the errno is the same.
	a := &address{object: -1, dir: -1}
	var err error
	if a.socket, err = thread.Duplicate(int(call.Thread), int(fd)); err != nil {
		return nil, n.ifThere(call, err)
	}
	if length < 0 || length > maxSockaddr {
		a.close()
		return nil, unix.EINVAL
	}
	if a.sockaddr, err = thread.Memory(int(call.Thread), addr, int(length)); err == nil {
		a.domain, err = unix.GetsockoptInt(a.socket, unix.SOL_SOCKET, unix.SO_DOMAIN)
	}
	// The thread was found by its number, which could be another thread's by
	// now. If the caller still waits it has been there all the time.
	if err = n.ifThere(call, err); err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

// ifThere returns err, or errGone if the caller does not wait any more.
func (n *Notifier) ifThere(call *usernotify.Call, err error) error {
	if !usernotify.Valid(n.listener, call.ID) {
		return errGone
	}
	return err
}

// openDir opens the working directory of the caller.
func (n *Notifier) openDir(call *usernotify.Call, a *address) (err error) {
	a.dir, err = unix.Open(fmt.Sprintf("/proc/%d/cwd", call.Thread), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return n.ifThere(call, err)
}

// errnoOf returns the errno that the command gets for err.
func errnoOf(err error) syscall.Errno {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return unix.EPERM
}
