package linux

import (
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forgets says that the children of this process do not inherit what its starter has set. The others
// say whether the starter has set a negative niceness or a negative OOM score.
var forgets, preferred, spared atomic.Bool

// ForgetStarter makes later children begin with the kernel's defaults, because the starter of a
// server has set other values for the server and not for the commands of its clients. No signal is
// ignored or blocked, and neither a negative OOM score nor a negative niceness is passed on. A
// positive one is: in a pod, for example, the score is that of the pod. Signals that this process
// ignores still have no effect on it.
func ForgetStarter() {
	nice, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	preferred.Store(err == nil && nice > 20) // the call returns 20 minus the niceness
	score, err := os.ReadFile("/proc/self/oom_score_adj")
	spared.Store(err == nil && len(score) > 0 && score[0] == '-')
	forgets.Store(true)
	// Go keeps these signals ignored. A signal with a handler has its default action in a child.
	for _, sig := range []syscall.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU} {
		if ignores(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	// C libraries use these signals for themselves, and Go leaves them as they are. posix_spawn of glibc,
	// by which make(1) starts its commands, has them ignored.
	for sig := syscall.Signal(32); sig <= 34; sig++ {
		if ignores(sig) {
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

// ignores reports whether this process ignores a signal.
func ignores(sig syscall.Signal) bool {
	var now action
	const ignored = 1 // SIG_IGN
	return sigaction(sig, nil, &now) == nil && now[0] == ignored
}

// Fork calls fork, which forks a child. After ForgetStarter, the child blocks no signals.
func Fork(fork func() (pid int, err error)) (pid int, err error) {
	if !forgets.Load() {
		return fork()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var none, before unix.Sigset_t
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &none, &before); err != nil {
		return 0, err
	}
	defer unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil)
	return fork()
}

// Settle takes a negative OOM score and a negative niceness from a new child, the leader of its group.
// It does nothing before ForgetStarter. Any process may raise these values of its own processes, so
// an error means that the child has ended.
func Settle(pid int) {
	if preferred.Load() {
		_ = unix.Setpriority(unix.PRIO_PGRP, pid, 0)
	}
	if spared.Load() {
		_ = os.WriteFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", []byte("0"), 0)
	}
}
