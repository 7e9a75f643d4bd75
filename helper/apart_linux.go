package helper

import (
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// A command with limits is not forked from T1, since it would have to be born
// with them, and init's runtime could not live with them. Instead init starts
// itself once more, and that second process builds the view, confines and
// limits itself, and executes the command in its own place. Init only watches:
// its root becomes the view too, as pivot_root(2) moves everybody's.

// apart is the third of four arguments of the second process; the fourth is
// empty, so that nothing else looks like it.
const apart = "apart"

func isApart(args []string) bool { return len(args) == 4 && args[2] == apart && args[3] == "" }

// startApart starts the second process, which will be the command.
func (t *target) startApart(s *supervisor) error {
	c := t.config
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("starting a second init: %w", os.NewSyscallError("socketpair", err))
	}
	defer unix.Close(pair[0])
	err = s.bear(func() (int, error) {
		return syscall.ForkExec("/proc/self/exe", []string{c.Argv0, InitArg, apart, ""}, &syscall.ProcAttr{
			Env:   os.Environ(),
			Files: []uintptr{0, 1, 2, configFD, uintptr(pair[1])},
			Sys:   &syscall.SysProcAttr{Setsid: c.NewSession, Setctty: c.NewSession && c.TTY},
		})
	})
	unix.Close(pair[1])
	if err != nil {
		return fmt.Errorf("starting a second init: %w", os.NewSyscallError("fork", err))
	}
	if t.listener, err = awaitApart(pair[0]); err != nil {
		return err
	}
	return dropCapabilities()
}

// becomeApart is the second process: it returns only if it cannot execute the
// command.
func (c *config) becomeApart() error {
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("hiding the memory of init: %w", os.NewSyscallError("prctl", err))
	}
	resolved, err := c.Policy.Resolve()
	if err != nil {
		return fmt.Errorf("resolving the policy: %w", err)
	}
	defer resolved.Close()
	if err := c.enterView(resolved); err != nil {
		return err
	}
	t := &target{config: c, policy: resolved.Policy}
	if err := t.become(); err != nil {
		return err
	}
	if t.listener > 0 {
		// Whoever is to answer has the other end.
		if err := unix.Sendmsg(leashFD, []byte{0}, unix.UnixRights(t.listener), nil, 0); err != nil {
			return fmt.Errorf("passing the listener of the filter on: %w", os.NewSyscallError("sendmsg", err))
		}
		unix.Close(t.listener)
	}
	return c.exec()
}

// awaitApart waits until the second process executes the command, or has ended
// and said why. Before that a signal would hit its runtime. The listener is 0
// if it has sent none.
func awaitApart(socket int) (listener int, err error) {
	data, control := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	for {
		n, size, _, _, err := unix.Recvmsg(socket, data, control, unix.MSG_CMSG_CLOEXEC)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return 0, fmt.Errorf("waiting for the second init: %w", os.NewSyscallError("recvmsg", err))
		case n == 0:
			return listener, nil
		}
		messages, err := unix.ParseSocketControlMessage(control[:size])
		if err != nil || len(messages) != 1 {
			return 0, fmt.Errorf("taking the listener of the filter: %d control messages, want 1", len(messages))
		}
		fds, err := unix.ParseUnixRights(&messages[0])
		if err != nil || len(fds) != 1 {
			return 0, fmt.Errorf("taking the listener of the filter: %d descriptors, want 1", len(fds))
		}
		listener = fds[0]
	}
}
