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

// Run starts a program in the sandbox, with files as its descriptors 0 to 2, passes
// signals on to it until it has ended, and returns its exit code, or 128+n after signal
// n. If init cannot start it, the code is that of [Command.ShellCodes], and the reason
// is on the third file. An error means that no init was started, or that it could not be
// waited for. The caller releases the sandbox afterwards.
//
// If this process has a controlling terminal the program shares the terminal
// and the session. Otherwise the program leads a session of its own.
//
// Run calls catch once the program can be started, with a channel. catch sends
// the signals for the program to this channel, like signal.Notify, and Run ends
// that with signal.Stop.
func (h *Held) Run(p procs.Program, files [3]*os.File, catch func(chan<- os.Signal)) (code int, err error) {
	tty := controllingTerminal()
	defer tty.close()
	// With a terminal the whole session gets signals from there. Without one the
	// program gets signals from init alone; as the leader of a session it gets
	// them together with all processes of its group.
	ready, err := h.prepare(p, tty == nil, true)
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
		// The kernel sends Pdeathsig when the thread that forked ends, and not
		// when the process does. So this thread has to stay.
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
	_ = ready.Leash.Close() // passSignals may be reading from the leash
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

// ShellStage is Stage for a command of the user, at its own terminal: if init cannot start it, the
// code is that of [Command.ShellCodes].
func (h *Held) ShellStage(p procs.Program) (*procs.Stage, error) { return h.prepare(p, true, true) }

// passSignals sends the signals that come from the channel to the process,
// until ended is closed. It begins when the process is ready for signals,
// because earlier signals would end an init instead of its command.
func passSignals(process *os.Process, leash *os.File, signals <-chan os.Signal, ended <-chan struct{}) {
	// An init writes one byte when it catches signals. The leash ends without
	// one if the init has executed the command in its own place, or has ended.
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

// foreground is the controlling terminal of this process. The methods of nil,
// for a process without a terminal, do nothing.
type foreground struct {
	fd   int
	held bool // our process group was in the foreground
}

// controllingTerminal opens the controlling terminal, and returns nil if there
// is none.
func controllingTerminal() *foreground {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return &foreground{fd: fd, held: err == nil && group == unix.Getpgrp()}
}

// reclaim brings the process group of this process back to the foreground, if
// it was there before. A shell that put its own jobs there does that itself at
// its end, but in a PID namespace it cannot name a group outside.
func (f *foreground) reclaim() {
	if f == nil || !f.held {
		return
	}
	signal.Ignore(syscall.SIGTTOU)
	defer signal.Reset(syscall.SIGTTOU)
	// If the terminal is gone there is nothing to bring back.
	_ = unix.IoctlSetPointerInt(f.fd, unix.TIOCSPGRP, unix.Getpgrp())
}

// close closes the descriptor of the terminal.
func (f *foreground) close() {
	if f != nil {
		_ = unix.Close(f.fd)
	}
}
