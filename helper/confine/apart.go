package confine

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/caps"
	"github.com/execagent/execagent/internal/pack"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/sandbox/view"
)

// A command with limits is not forked from T1. Its limits have to hold from its
// first moment on, so the process that forks it would have to have them. But
// limits are those of a whole process, and the runtime of init could not go on
// with a limited address space. So init starts itself once more. That second
// process builds the view, confines and limits itself, and executes the command
// in its own place. Init only watches. It shares the mount namespace, and its
// root becomes the view too, since pivot_root(2) moves the root of every
// process that had the old one.
//
//	init                  second process
//
//	  ◄── view, memfd ──  the view is built; the memfd lists the mounts that it depends on
//	  ─────── go ──────►  all of them are there
//	  ◄─ listener, fd ──  only if the filter leaves calls to a listener: this one
//	  ◄─ end of socket ─  the command is executed
//
// Each packet is one byte. The list of mounts is in a memfd, since a view may
// depend on thousands.

// apart is the third of the four arguments of the second process. The fourth is
// empty, so that no other command line looks like this one.
const apart = "apart"

// isApart tells whether a process with these arguments is the second one.
func isApart(args []string) bool { return len(args) == 4 && args[2] == apart && args[3] == "" }

// The packets between the two processes.
const (
	apartView     = 'v'
	apartGo       = 'g'
	apartListener = 'l'
)

// maxMade bounds the list of mounts in the memfd, in bytes.
const maxMade = 64 << 20

// startApart starts the second process and returns once that has executed the
// command. Init has no capabilities then.
func (t *target) startApart(s *supervisor, watch *mountWatch) error {
	c := t.config
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("starting a second init: %w", os.NewSyscallError("socketpair", err))
	}
	err = s.bear(func() (int, error) {
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
	t.drop = caps.Drop
	if !c.Policy.Confined { // the command keeps those that it has, and who has none could not trace it
		t.drop = func() error { return nil }
	}
	if err = t.awaitApart(pair[0], watch); err != nil {
		// pair[0] stays open: when it is closed the second process gets an error
		// and prints that one too, beside this one.
		return err
	}
	unix.Close(pair[0])
	return nil
}

// becomeApart is what the second process does. It returns only if the command
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
		// filter, which may leave sendmsg(2) to nobody yet, so another one sends.
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

// readMade reads what passMade has passed on.
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
// ended and said why. It lets the process go on once watch has found the mounts
// of its view. Until awaitApart returns no signal is passed on: it would hit
// the runtime of the second process, and not the command. The calls of the
// command are served from the moment on at which the listener arrives: the
// execve of the second process may be the first of them.
func (t *target) awaitApart(socket int, watch *mountWatch) error {
	for {
		what, fd, err := receiveApart(socket)
		switch {
		case errors.Is(err, errApartEnd) && t.listener > 0:
			return nil // the capabilities were dropped before
		case errors.Is(err, errApartEnd):
			return t.drop()
		case err != nil:
			return fmt.Errorf("waiting for the second init: %w", err)
		case what == apartListener && fd >= 0 && t.listener == 0:
			t.listener = fd
			// Every thread is sent a signal to drop its capabilities, and those that
			// serve block all signals: init would wait for them for good.
			if err := t.drop(); err != nil {
				return err
			}
			t.serve(fd)
		case what == apartView && fd >= 0:
			made, err := readMade(fd)
			unix.Close(fd)
			if err == nil {
				err = watch.record(made)
			}
			if err == nil {
				err = sendApart(socket, apartGo, -1)
			}
			if err != nil {
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
// its end of the socket, by executing something or by ending.
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
	case err != nil:
		return 0, -1, os.NewSyscallError("recvmsg", err)
	case n == 0:
		return 0, -1, errApartEnd
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
