package linux

import (
	"bytes"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forgets says that the children of this process do not inherit what its starter has set.
var forgets atomic.Bool

// ForgetStarter makes later children begin with the kernel's defaults, because the starter of a
// server has set other values for the server and not for the commands of its clients. No signal is
// ignored or blocked, and neither a negative OOM score nor a negative niceness is passed on. A
// positive one is: in a pod, for example, the score is that of the pod. Signals that this process
// ignores still have no effect on it. It is called once, before Fork.
func ForgetStarter() {
	forgets.Store(true)
	if negative() {
		plain = startThread()
	}
	// Go keeps these signals ignored. A signal with a handler has its default action in a child.
	for _, sig := range []syscall.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU} {
		if Ignores(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	// C libraries use these signals for themselves, and Go leaves them as they are. posix_spawn of glibc,
	// by which make(1) starts its commands, has them ignored.
	for sig := syscall.Signal(32); sig <= 34; sig++ {
		if Ignores(sig) {
			SetDefault(sig)
		}
	}
}

// action is the kernel's sigaction, whose first member is the handler. The zero value is the default
// action.
type action [4]uint64

// SetDefault gives a signal its default action in this process. Package signal has no way back to that
// from a handler of the runtime, which drops the signal after Reset.
func SetDefault(sig syscall.Signal) {
	_ = sigaction(sig, &action{}, nil) // it fails only for SIGKILL and SIGSTOP, which have that action always
}

// sigaction is rt_sigaction(2).
func sigaction(sig syscall.Signal, to, from *action) error {
	const setSize = 8 // bytes of the kernel's set of signals
	_, _, errno := unix.Syscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(to)), uintptr(unsafe.Pointer(from)), setSize, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// Ignores reports whether this process ignores a signal. [signal.Ignored] does not know it of each signal that
// the process has inherited as ignored, and says it for ever of one that was ignored and then reset.
func Ignores(sig syscall.Signal) bool {
	var now action
	const ignored = 1 // SIG_IGN
	return sigaction(sig, nil, &now) == nil && now[0] == ignored
}

// Fork calls fork, which forks a child and returns when it has executed something. After ForgetStarter, the
// child blocks no signals, and has neither a negative OOM score nor a negative niceness, from its first
// moment: a program that forked at once could pass such values on before anybody took them from it.
func Fork(fork func() (pid int, err error)) (pid int, err error) { return forkOn(plain, fork) }

// ForkApart is Fork for a child of another user, who must not have the keys of this process: the session keyring
// of the child is new and empty (session-keyring(7)). A child possesses what it inherits, whatever its user is.
func ForkApart(fork func() (pid int, err error)) (pid int, err error) {
	return forkOn(apart(), func() (int, error) {
		// Where the kernel has no keys, or a filter refuses this, the child has none either.
		_, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0)
		if err != nil && err != unix.ENOSYS && err != unix.EPERM {
			return 0, os.NewSyscallError("keyctl", err)
		}
		return fork()
	})
}

// forkOn forks on a thread of [startThread]; nil: on any.
func forkOn(thread chan func(), fork func() (pid int, err error)) (pid int, err error) {
	forked := func() { pid, err = fork() }
	if forgets.Load() {
		spare.begin()
		defer spare.end()
		forked = func() {
			var none, before unix.Sigset_t
			if err = unix.PthreadSigmask(unix.SIG_SETMASK, &none, &before); err != nil {
				return
			}
			defer unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil)
			pid, err = fork()
		}
	}
	if thread != nil {
		done := make(chan struct{})
		thread <- func() {
			defer close(done)
			forked()
		}
		<-done
		return pid, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	forked()
	return pid, err
}

// plain has work for a thread with the niceness 0; nil: all threads have it, or a positive one. A thread
// without privileges that has given up a negative niceness never gets it back, so this one is for forks
// alone.
var plain chan func()

// apart has work for a thread whose session keyring is not that of this process. A thread cannot go back to a
// keyring without a name, so this one is for forks of [ForkApart] alone.
var apart = sync.OnceValue(startThread)

// startThread starts a thread for forks. If its niceness is negative, it has 0. It never ends, because the kernel
// takes its end for the end of the parent of its children. Forks are not slower by that: package syscall makes one
// at a time.
func startThread() chan func() {
	thread := make(chan func())
	go func() {
		runtime.LockOSThread()
		if forgets.Load() && negative() {
			_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 0) // of this thread; whoever may lower it may raise it
		}
		for do := range thread {
			do()
		}
	}()
	return thread
}

// negative reports whether the niceness of the calling thread is negative.
func negative() bool {
	nice, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	return err == nil && nice > 20 // 20 minus the niceness
}

// spare is the negative OOM score of this process, which no child inherits. A score belongs to a process
// and not to a thread. So this process gives its own up while it forks, for about a millisecond.
var spare score

type score struct {
	mu    sync.Mutex
	file  *os.File // nil: the score is not negative
	value []byte
	forks int // under way
}

// begin gives the score up. An error means that children inherit it.
func (s *score) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.forks++; s.forks == 1 && s.file != nil {
		_, _ = s.file.WriteAt([]byte("0"), 0)
	}
}

// end takes the score back. The kernel always lets a process do so: the least value that it may choose
// itself is the one that its starter has set.
func (s *score) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.forks--; s.forks == 0 && s.file != nil {
		_, _ = s.file.WriteAt(s.value, 0)
	}
}

// NoteScore notes a negative OOM score of this process, so that Fork can keep it from children. It is called
// once, before this process hides its memory: then the file of the score is root's.
func NoteScore() {
	const path = "/proc/self/oom_score_adj"
	value, err := os.ReadFile(path)
	if err != nil || len(value) == 0 || value[0] != '-' {
		return
	}
	if spare.file, err = os.OpenFile(path, os.O_WRONLY, 0); err == nil {
		spare.value = bytes.TrimSpace(value)
	}
}
