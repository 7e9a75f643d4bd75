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
	// MaxBlocked bounds the calls that block at once, each of which takes a
	// thread; more fail with EAGAIN.
	MaxBlocked = 256
	// maxBinding bounds the processes that bind names in the file system.
	maxBinding = 4
)

// Notifier answers the calls of connect(2) and bind(2) that the command's filter
// asks about, by doing them: on a copy of the address, which the command cannot
// change any more, and on a duplicate of the socket. No call is ever let
// through, since the kernel would read the address again.
type Notifier struct {
	config   Config
	listener int
	begun    unix.Timespec // before the command was
	blocked  chan struct{} // holds one for each call that blocks
	binding  chan struct{} // holds one for each process of bindApart
}

// Config is whose calls a [Notifier] answers.
type Config struct {
	// Policy is the command's, with canonical paths.
	Policy *sandbox.Policy
	// Ports are those of the agent's own listeners.
	Ports []uint16
	// Self is the argv[0] of this program and the argument that makes it a helper. With them, and
	// with more of its own, a notifier starts the program anew: what [IsBind] recognizes is to call
	// [BindMain].
	Self []string
}

// New notes the time before the command starts, on the clock that file
// systems use for births.
func New(c Config) (*Notifier, error) {
	n := &Notifier{config: c, blocked: make(chan struct{}, MaxBlocked), binding: make(chan struct{}, maxBinding)}
	err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &n.begun)
	return n, os.NewSyscallError("clock_gettime", err)
}

// Serve answers what the command's filter asks listener, until the last process
// with that filter has ended.
func (n *Notifier) Serve(listener int) {
	n.listener = listener
	for {
		call, err := usernotify.Receive(n.listener)
		switch err {
		case nil:
			n.answer(call)
		case unix.EINTR:
		case unix.ENOENT: // the caller is gone; maybe all processes are
			if usernotify.HungUp(n.listener) {
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
func (n *Notifier) answer(call *usernotify.Call) {
	a, err := n.take(call)
	if err != nil {
		n.refuse(call, err)
		return
	}
	if call.Number == unix.SYS_BIND {
		n.answerBind(call, a)
	} else {
		n.answerConnect(call, a)
	}
}

// refuse ends a call with the error, unless its caller is gone.
func (n *Notifier) refuse(call *usernotify.Call, err error) {
	if err != errGone {
		usernotify.Respond(n.listener, call.ID, errnoOf(err))
	}
}

// apart does a call in a goroutine of its own, of which there is a bounded
// number, and closes a.
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

// address holds the arguments of a call of connect or bind. It owns its descriptors.
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
func (n *Notifier) take(call *usernotify.Call) (*address, error) {
	fd, addr, length := int32(call.Args[0]), call.Args[1], int32(call.Args[2])
	// In the order in which the kernel looks.
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
	// All of it is what the caller had only if it has been there all the time;
	// its number could be somebody else's by now.
	if err = n.ifThere(call, err); err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

// ifThere returns err, or errGone if the caller has ended.
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
