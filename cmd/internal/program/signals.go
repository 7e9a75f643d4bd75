package program

import (
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
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

// Stop stops this program by a signal such as SIGTSTP, as if the program did not catch it, and
// returns when a shell continues the program. With group, the rest of its process group stops
// first. If the program cannot be stopped, because no shell could continue it or because it was
// started with the signal ignored, Stop returns at once. The signal is no longer caught afterwards.
func Stop(sig syscall.Signal, group bool) {
	if linux.Ignores(sig) {
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	signal.Ignore(sig)
	defer signal.Reset(sig) // so that it can be caught again
	if group {
		_ = syscall.Kill(0, sig) // the caller has the same group
		// The kernel keeps even an ignored signal while the first thread blocks it. A thread of package
		// signal does so, and may be the first. To ignore the signal again drops it.
		signal.Ignore(sig)
	}
	// A signal for this thread has stopped the whole process when the thread goes on. A signal for the
	// process could go to another thread and arrive later.
	//
	// The signal waits until this thread unblocks it, because another program of the group may stop this
	// one meanwhile. In that case the SIGCONT of the shell takes the signal away, as it takes all that
	// wait. Otherwise this program would stop again at once, although the user has continued it.
	var before, blocked unix.Sigset_t
	blocked.Val[0] = 1 << (sig - 1)
	_ = unix.PthreadSigmask(unix.SIG_BLOCK, &blocked, &before) // it cannot fail, as it cannot below
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), sig)
	linux.SetDefault(sig)
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil)
}
