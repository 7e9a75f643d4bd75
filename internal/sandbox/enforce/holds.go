package enforce

import (
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// HoldsConnections reports whether the kernel and the filters of this process allow what the init of a
// command needs in order to hold connections: a filter with a listener, as [Filter.Load] makes one, and
// either a way to take a socket from another process, or a supervisor, which makes the sockets itself.
// It is fast, because the first client of an agent waits for it.
var HoldsConnections = sync.OnceValue(func() bool {
	// The kernel looks at the flags before it looks for a program, so it knows them if it finds none.
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, listening, 0)
	if errno != unix.EFAULT {
		return false
	}
	if mode, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0); err == nil && mode == 0 {
		return true // no filter around this process forbids anything, or has the only listener
	}
	const supervisorABI = 6 // of Landlock
	return canListen() && (canTake() || LandlockABI() >= supervisorABI)
})

const listening = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV

// canListen loads a filter that allows everything, with a listener, on a thread that then ends.
func canListen() bool {
	allow := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}}
	result := make(chan bool)
	var try func()
	try = func() {
		// The thread ends with its goroutine, because that never unlocks it. The main thread cannot end.
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			other := make(chan struct{})
			go func() { defer close(other); try() }()
			<-other
			runtime.UnlockOSThread()
			return
		}
		listener, err := load("listener", allow, listening)
		if err == nil {
			unix.Close(listener)
		}
		result <- err == nil
	}
	go try()
	return <-result
}

// canTake reports whether pidfd_getfd works, of which a filter around this process may know nothing.
func canTake() bool {
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return false
	}
	defer unix.Close(self)
	fd, err := unix.PidfdGetfd(self, self, 0)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}
