package files

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/internal/pack"
	"github.com/execagent/execagent/sandbox"
)

// sendBuffer is the size of a socket's send buffer, in bytes. All requests that may be in
// flight fit, each with the overhead of the kernel. The kernel doubles the value; socket(7).
const sendBuffer = maxInFlight * (maxRequest + 4<<10)

// spawn starts a helper and waits until it serves, or until stop is closed.
func (c *Config) spawn(policy *sandbox.Policy, stop <-chan struct{}) (*worker, error) {
	s := setup{policy: policy, hidden: []int{os.Getpid()}}
	config, err := s.encode()
	if err != nil {
		return nil, err
	}
	w, err := c.fork(config)
	if err != nil {
		return nil, fmt.Errorf("starting the helper: %w", err)
	}
	late := time.NewTimer(c.start)
	defer late.Stop()
	select {
	case <-w.ready:
		return w, nil
	case <-w.over:
	case <-stop:
		w.fail(errClosed)
	case <-late.C:
		w.fail(fmt.Errorf("the helper was not ready after %v", c.start))
	}
	w.Close()
	return nil, w.broken
}

// fork starts a helper process, and its worker in the agent.
func (c *Config) fork(config []byte) (*worker, error) {
	f, err := openPipes(config)
	defer f.closeTheirs()
	if err != nil {
		f.closeOurs()
		return nil, err
	}
	pidfd := -1
	attr := &syscall.ProcAttr{
		Env:   []string{},
		Files: []uintptr{f.theirs[0], f.theirs[0], f.theirs[1], f.theirs[2]},
		Sys: &syscall.SysProcAttr{
			// The helper gets no terminal, and no signal to the agent's process group.
			Setsid: true,
			// The helper dies with the agent. Strictly, it dies with the thread that
			// forked it, but nothing in the agent ends a thread. The end of the socket
			// ends the helper too.
			Pdeathsig: syscall.SIGKILL,
			PidFD:     &pidfd,
		},
	}
	pid, err := c.Fork(func() (int, error) {
		return syscall.ForkExec(c.Path, []string{c.Argv0, Arg}, attr)
	})
	if err != nil {
		f.closeOurs()
		if err == syscall.ENOENT { // which must not look like an error of the request's file
			return nil, fmt.Errorf("%s: %s: %w", c.Path, err.Error(), linux.ErrNoProcfs)
		}
		return nil, os.NewSyscallError("fork", err)
	}
	p, err := newProcess(pid, pidfd, c.Reaped)
	if err != nil {
		f.closeOurs()
		return nil, err
	}
	w, err := newWorker(f.socket, p, c.Quiet, c.Hang)
	if err != nil {
		f.closeOurs() // makes the helper exit
		return nil, errors.Join(err, p.wait())
	}
	w.running.Go(func() { logLines(f.log, c.Log.With("helper", pid)) })
	return w, nil
}

// pipes are the descriptors that connect the agent with a new helper.
type pipes struct {
	socket, log *os.File  // the agent's
	theirs      []uintptr // the helper's: socket, log, setup
}

func openPipes(config []byte) (f pipes, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return f, os.NewSyscallError("socketpair", err)
	}
	f.theirs = append(f.theirs, uintptr(pair[1]))
	if f.socket, err = pollable(pair[0], "fs helper"); err != nil {
		return f, err
	}
	if err := unix.SetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer); err != nil {
		return f, os.NewSyscallError("setsockopt", err)
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return f, os.NewSyscallError("pipe2", err)
	}
	f.theirs = append(f.theirs, uintptr(ends[1]))
	if f.log, err = pollable(ends[0], "fs helper log"); err != nil {
		return f, err
	}
	memfd, err := pack.SealedFile("fs-helper", config)
	if err != nil {
		return f, err
	}
	f.theirs = append(f.theirs, uintptr(memfd))
	return f, nil
}

func (f pipes) closeTheirs() {
	for _, fd := range f.theirs {
		unix.Close(int(fd))
	}
}

func (f pipes) closeOurs() {
	for _, file := range []*os.File{f.socket, f.log} {
		if file != nil {
			_ = file.Close() // nothing was written
		}
	}
}
