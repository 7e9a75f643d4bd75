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
	"github.com/execagent/execagent/sandbox/view"
)

// A command with limits is not forked from T1, since it would have to be born
// with them, and init's runtime could not live with them. Instead init starts
// itself once more, and that second process builds the view, confines and
// limits itself, and executes the command in its own place. Init only watches:
// its root becomes the view too, as pivot_root(2) moves everybody's.
//
//	init                                 second process
//
//	                                     view + memfd: the mounts that it depends on
//	go: all of them are there
//	                                     listener + its descriptor, if the filter asks
//	                                     the end of the socket: the command is executed
//
// Each is a packet of one byte; a memfd, since there may be thousands of mounts.

// apart is the third of four arguments of the second process; the fourth is
// empty, so that nothing else looks like it.
const apart = "apart"

func isApart(args []string) bool { return len(args) == 4 && args[2] == apart && args[3] == "" }

// The packets between the two.
const (
	apartView     = 'v'
	apartGo       = 'g'
	apartListener = 'l'
)

// maxMade bounds the list of mounts that the second process passes on, in bytes.
const maxMade = 64 << 20

// startApart starts the second process, which will be the command.
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
	if t.listener, err = awaitApart(pair[0], watch); err != nil {
		return err // pair[0] stays open: at its end the second process would print an error beside ours
	}
	unix.Close(pair[0])
	return caps.Drop()
}

// becomeApart is the second process: it returns only if it cannot execute the
// command.
func (c *config) becomeApart() error {
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("hiding the memory of init: %w", os.NewSyscallError("prctl", err))
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
	if err := t.become(); err != nil {
		return err
	}
	if t.listener > 0 {
		// Whoever is to answer has the other end.
		if err := sendApart(leashFD, apartListener, t.listener); err != nil {
			return fmt.Errorf("passing the listener of the filter on: %w", err)
		}
		unix.Close(t.listener)
	}
	return withFewerFiles(c.exec)
}

// passMade tells init which mounts the view depends on, and waits until it has
// found all of them.
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
	list, err := readAt(fd, maxMade)
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

// awaitApart lets the second process go on once watch knows its view, and waits
// until it executes the command, or has ended and said why. Before that a signal
// would hit its runtime. The listener is 0 if it has sent none.
func awaitApart(socket int, watch *mountWatch) (listener int, err error) {
	for {
		what, fd, err := receiveApart(socket)
		switch {
		case errors.Is(err, errApartEnd):
			return listener, nil
		case err != nil:
			return 0, fmt.Errorf("waiting for the second init: %w", err)
		case what == apartListener && fd >= 0 && listener == 0:
			listener = fd
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
				return 0, err
			}
		default:
			return 0, fmt.Errorf("waiting for the second init: packet %q: %w", what, unix.EPROTO)
		}
	}
}

// sendApart sends a packet, with a descriptor unless that is negative.
func sendApart(socket int, what byte, fd int) error {
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	return os.NewSyscallError("sendmsg", unix.Sendmsg(socket, []byte{what}, rights, nil, 0))
}

// errApartEnd says that the other process has closed its end.
var errApartEnd = errors.New("the socket has ended")

// receiveApart receives a packet; fd is -1 if it has no descriptor.
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
