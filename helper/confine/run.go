package confine

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/procs"
)

// Run starts a program in the sandbox, with these files as its descriptors 0 to
// 2, and sees it out: it passes on the signals that this process gets, and
// returns the exit code, or 128 and the signal that ended the program. Where
// this process has a controlling terminal the program shares it and its
// session, else it leads a session of its own. The caller releases the sandbox
// afterwards.
//
// Catch has signals sent to a channel that the program may get; it is called
// when there is a program to be started.
func (h *Held) Run(p procs.Program, files [3]*os.File, catch func(chan<- os.Signal)) (code int, err error) {
	tty := controllingTerminal()
	defer tty.close()
	// Without a terminal the program gets signals from us alone: as the leader
	// of a session it gets them together with all that it has started.
	ready, err := h.prepare(p, tty == nil)
	if err != nil {
		return 0, err
	}
	defer ready.Close()

	signals := make(chan os.Signal, 8)
	catch(signals)
	defer signal.Stop(signals)

	attr := &os.ProcAttr{
		Dir:   "/",
		Env:   ready.Env,
		Files: append(files[:], ready.Files...),
		Sys:   &syscall.SysProcAttr{Cloneflags: ready.Cloneflags, AmbientCaps: ready.AmbientCaps},
	}
	if ready.Grace == 0 {
		attr.Sys.Pdeathsig = syscall.SIGKILL
		// The signal comes when this thread ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	process, err := os.StartProcess(ready.Path, ready.Argv, attr)
	if err != nil {
		return 0, fmt.Errorf("starting the sandbox: %w", err)
	}
	for _, file := range ready.Files {
		_ = file.Close() // the child has its own
	}
	passed := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(passed)
		passSignals(process, ready.Leash, signals, ended)
	}()
	state, err := process.Wait()
	close(ended)
	_ = ready.Leash.Close() // which unblocks passSignals
	<-passed
	tty.reclaim()
	if err != nil {
		return 0, fmt.Errorf("waiting for the command: %w", err)
	}
	if status := state.Sys().(syscall.WaitStatus); status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return state.ExitCode(), nil
}

// passSignals sends a process the signals that this one gets, from when it
// takes them until it has ended.
func passSignals(process *os.Process, leash *os.File, signals <-chan os.Signal, ended <-chan struct{}) {
	// One byte says that it does; the end of the file that it has become what
	// takes them, or is gone.
	_, _ = leash.Read(make([]byte, 1))
	for {
		select {
		case sig := <-signals:
			_ = process.Signal(sig) // it may have ended
		case <-ended:
			return
		}
	}
}

// foreground is the controlling terminal of this process; nil: it has none.
type foreground struct {
	fd   int
	held bool // our process group was in the foreground
}

func controllingTerminal() *foreground {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return &foreground{fd: fd, held: err == nil && group == unix.Getpgrp()}
}

// reclaim brings the group of this process back to the foreground. A shell that
// was run cannot do so itself where it could not see that group.
func (f *foreground) reclaim() {
	if f == nil || !f.held {
		return
	}
	signal.Ignore(syscall.SIGTTOU)
	defer signal.Reset(syscall.SIGTTOU)
	// If the terminal is gone there is nothing to bring back.
	_ = unix.IoctlSetPointerInt(f.fd, unix.TIOCSPGRP, unix.Getpgrp())
}

func (f *foreground) close() {
	if f != nil {
		_ = unix.Close(f.fd)
	}
}
