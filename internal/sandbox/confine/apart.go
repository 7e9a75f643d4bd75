package confine

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/internal/pack"
	"github.com/execagent/execagent/internal/sandbox/view"
	"github.com/execagent/execagent/sandbox"
)

// A command with limits is not forked from T1. The limits have to hold from the
// command's first moment on, so the process that forks it would need them too. But
// limits apply to a whole process, and Go's runtime in init could not go on
// with a limited address space. So init starts itself once more. This
// second process builds the view, confines and limits itself, and executes the command
// in its own place. Init only watches. It shares the mount namespace, and the view
// becomes its root too, because pivot_root(2) moves the root of every
// process that had the old root.
//
//	init                  second process
//
//	  ◄── view, memfd ──  the view is built; the memfd lists the mounts that it depends on
//	  ─────── go ──────►  init has found all of them
//	  ◄─ listener, fd ──  only if the filter leaves calls to a listener: this listener
//	  ◄─ end of socket ─  the command is executed
//
// Each packet is one byte. The list of mounts is in a memfd, because a view may
// depend on thousands.

// apart marks the arguments of the second process ([isMarked]).
const apart = "apart"

// The packets between the two processes.
const (
	apartView     = 'v'
	apartGo       = 'g'
	apartListener = 'l'
)

// maxMade bounds the list of mounts in the memfd, in bytes.
const maxMade = 64 << 20

// startApart starts the second process and returns once the second process has executed the
// command. Init has no capabilities then.
func (t *target) startApart() error {
	c := t.config
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("starting a second init: %w", os.NewSyscallError("socketpair", err))
	}
	err = t.supervisor.bear(func() (int, error) {
		return syscall.ForkExec("/proc/self/exe", []string{c.Argv0, Arg, apart, ""}, &syscall.ProcAttr{
			Env:   os.Environ(),
			Files: []uintptr{0, 1, 2, configFD, uintptr(pair[1])},
			Sys:   &syscall.SysProcAttr{Setsid: c.NewSession, Setctty: c.NewSession && c.TTY},
		})
	})
	unix.Close(pair[1])
	if err != nil {
		return fmt.Errorf("starting a second init: %w", os.NewSyscallError("fork", err))
	}
	t.drop = linux.DropCaps
	if !c.Policy.Confined { // the command keeps its capabilities, and an init without them could not trace it
		t.drop = func() error { return nil }
	}
	if err = t.awaitApart(pair[0], t.watch); err != nil {
		// pair[0] stays open. If it were closed, the second process would get an
		// error too, and print it beside this one.
		return err
	}
	unix.Close(pair[0])
	return nil
}

// becomeApart does what the second process has to do. It returns only if the command
// cannot be executed.
func (c *config) becomeApart() error {
	runtime.LockOSThread()
	if !c.Backend.Has(sandbox.Supervised) && c.Rules == nil {
		if err := hideMemory(); err != nil {
			return err
		}
	} else if err := showMemory(); err != nil { // the first init traces this process around its execve
		return err
	}
	resolved, err := c.resolve()
	if err != nil {
		return err
	}
	defer resolved.Close()
	made, err := c.enterView(resolved)
	if err != nil {
		return err
	}
	if err := passMade(leashFD, made); err != nil {
		return err
	}
	t := &target{config: c, policy: resolved.Policy}
	restoreOpenFiles()
	if err := t.confineHere(); err != nil {
		return err
	}
	if t.listener > 0 {
		// The first init answers the calls of the command. This thread has the
		// filter, which may leave sendmsg(2) to the listener, where nobody answers
		// yet. So another thread sends.
		sent := make(chan error)
		go func() { sent <- sendApart(leashFD, apartListener, t.listener) }()
		if err := <-sent; err != nil {
			return fmt.Errorf("passing the listener of the filter on: %w", err)
		}
		unix.Close(t.listener)
	}
	return withFewerFiles(c.exec)
}

// passMade tells the first init which mounts the view depends on, and waits
// until init has found all of them.
func passMade(socket int, made []view.Mounted) error {
	list := pack.AppendInt(nil, len(made))
	for _, m := range made {
		list = pack.AppendInt(pack.AppendString(list, m.Path), int(m.ID))
	}
	fd, err := pack.SealedFile("mounts", list)
	if err == nil {
		err = sendApart(socket, apartView, fd)
		unix.Close(fd)
	}
	if err != nil {
		return fmt.Errorf("passing the mounts of the view on: %w", err)
	}
	what, more, err := receiveApart(socket)
	if err == nil && (what != apartGo || more >= 0) {
		err = unix.EPROTO
	}
	if err != nil {
		return fmt.Errorf("waiting for the first init: %w", err)
	}
	return nil
}

// readMade reads the list that passMade has sent.
func readMade(fd int) ([]view.Mounted, error) {
	list, err := pack.ReadFile(fd, maxMade)
	if err != nil {
		return nil, err
	}
	d := pack.NewDecoder(list)
	var made []view.Mounted
	for range d.Int() {
		path, id := d.String(maxMade), d.Uint64()
		if !d.OK() {
			break
		}
		made = append(made, view.Mounted{Path: path, ID: id})
	}
	return made, d.End()
}

// awaitApart waits until the second process has executed the command, or has
// ended and printed the reason. It lets the process go on once watch has found the mounts
// of its view. Until awaitApart returns, no signal is passed on, because it would reach
// Go's runtime in the second process and not the command. The calls of the
// command are served as soon as the listener arrives, because the
// execve of the second process may be the first of them.
func (t *target) awaitApart(socket int, watch *mountWatch) error {
	for {
		what, fd, err := receiveApart(socket)
		switch {
		case errors.Is(err, errApartEnd) && t.listener > 0:
			return nil // the capabilities were dropped when the listener came
		case errors.Is(err, errApartEnd):
			return t.drop()
		case err != nil:
			return fmt.Errorf("waiting for the second init: %w", err)
		case what == apartListener && fd >= 0 && t.listener == 0:
			t.listener = fd
			// The capabilities are dropped first: the runtime sends every thread a
			// signal for that, and would wait forever for threads that serve, because
			// they block all signals.
			if err := t.drop(); err != nil {
				return err
			}
			t.serve()
		case what == apartView && fd >= 0:
			made, err := readMade(fd)
			unix.Close(fd)
			if err == nil {
				err = watch.record(made)
			}
			if err == nil {
				err = sendApart(socket, apartGo, -1)
			}
			if err != nil && !errors.Is(err, unix.EPIPE) { // a process that was killed meanwhile: the socket ends
				return err
			}
		default:
			return fmt.Errorf("waiting for the second init: packet %q: %w", what, unix.EPROTO)
		}
	}
}

// sendApart sends a packet, with the descriptor fd unless that is negative.
func sendApart(socket int, what byte, fd int) error {
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	return os.NewSyscallError("sendmsg", unix.Sendmsg(socket, []byte{what}, rights, nil, 0))
}

// errApartEnd is the error of receiveApart when the other process has closed
// its end of the socket, because it has executed a program or has ended.
var errApartEnd = errors.New("the socket has ended")

// receiveApart receives a packet; fd is -1 if the packet has no descriptor.
func receiveApart(socket int) (what byte, fd int, err error) {
	data, control := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	var n, size int
	for {
		n, size, _, _, err = unix.Recvmsg(socket, data, control, unix.MSG_CMSG_CLOEXEC)
		if err != unix.EINTR {
			break
		}
	}
	switch {
	// The error is ECONNRESET if the other process was killed before it read a packet (unix(7)).
	case err == unix.ECONNRESET, err == nil && n == 0:
		return 0, -1, errApartEnd
	case err != nil:
		return 0, -1, os.NewSyscallError("recvmsg", err)
	case size == 0:
		return data[0], -1, nil
	}
	messages, err := unix.ParseSocketControlMessage(control[:size])
	if err != nil || len(messages) != 1 {
		return 0, -1, fmt.Errorf("packet %q has %d control messages: %w", data[0], len(messages), unix.EPROTO)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return 0, -1, fmt.Errorf("packet %q has %d descriptors: %w", data[0], len(fds), unix.EPROTO)
	}
	return data[0], fds[0], nil
}
