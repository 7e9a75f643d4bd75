package program

import (
	"os"
	"os/signal"
	"syscall"
	"time"
)

// Catch passes the named signals to the channel. It also passes SIGHUP, unless SIGHUP is ignored,
// as under nohup(1).
//
// It also catches SIGPIPE, into a channel that nobody reads. Writing to a pipe without a reader
// then returns EPIPE and does not kill this process. So a server whose log nobody reads goes on,
// and exec can end a command whose output nobody reads. Ignoring SIGPIPE would have the same
// effect, but every command would inherit the ignored signal.
func Catch(signals chan<- os.Signal, named ...os.Signal) {
	signal.Notify(signals, named...)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
}

// DieOf ends the program by a signal, so that its parent sees a process that the signal has killed.
// PID 1 cannot die in this way, so for PID 1 DieOf returns the exit code that a shell would show
// for such a process.
func DieOf(sig syscall.Signal) int {
	signal.Reset(sig)
	// The signal may go to another thread of this process, so kill(2) can return before the process
	// has died. The sleep waits for this.
	if err := syscall.Kill(os.Getpid(), sig); err == nil && os.Getpid() != 1 {
		time.Sleep(time.Second)
	}
	return 128 + int(sig)
}
