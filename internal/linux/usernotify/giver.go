package usernotify

import (
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Giver installs descriptors in callers, which are threads whose system calls wait for an answer.
// The zero value is ready for use. Every thread that gives descriptors needs its own Giver, and its
// goroutine must be locked to the thread.
//
// To install a descriptor, the kernel wakes the caller, and then the caller wakes the giver. Each
// wake uses an idle CPU if there is one, even after [WakeHere]. If a Giver has measured that this
// takes long, it keeps both threads on one CPU for the next descriptors to the same caller. It does
// so only for the caller of the previous descriptor: if several threads are busy, another CPU may
// be better for this caller.
type Giver struct {
	near int    // number of descriptors to give on one CPU before the time is measured again
	last uint32 // the thread that got the last descriptor
}

const (
	// long is more than two wakes take on a host that is not a virtual machine.
	long = 20 * time.Microsecond
	// often is the number of descriptors that are given on one CPU after one took long.
	often = 128
)

// Give gives the caller a new descriptor for the open file of fd, with the lowest free number in
// the caller. If ended is true, the call has ended. If ended is false, the call waits for [Return]
// with the number; before that, this process can close its own descriptor. If wait is true, ended
// is always false. The error is an errno: ENOENT if the caller is gone, or EMFILE at the caller's
// limit of open files. After any error except ENOENT, the call waits for [Respond].
//
// All signals must be blocked on the calling thread ([Undisturbed]). If a signal interrupts Give, the
// kernel ends the call with success and the value 0, whether or not 0 is a descriptor, and the error
// of Give is EINPROGRESS.
func (g *Giver) Give(listener int, call *Call, fd int, closeOnExec, wait bool) (number int, ended bool, err error) {
	a := addFD{id: call.ID, src: uint32(fd)}
	if closeOnExec {
		a.newFDFlags = unix.O_CLOEXEC
	}
	again := g.last == call.Thread
	g.last = call.Thread
	var t together
	if g.near > 0 && again && t.begin(int(call.Thread)) {
		g.near--
		number, err = a.add(listener)
		t.end(int(call.Thread))
		return number, false, err
	}
	if !wait {
		a.flags = unix.SECCOMP_ADDFD_FLAG_SEND
	}
	began := time.Now()
	number, err = a.add(listener)
	if time.Since(began) > long {
		g.near = often
	}
	return number, err == nil && !wait, err
}

// Undisturbed calls do on a thread that blocks all signals.
func Undisturbed(do func()) {
	runtime.LockOSThread()
	var all, was unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &was); err != nil {
		panic(err) // the arguments are right, so this cannot happen
	}
	defer func() {
		// A thread that cannot have its signals back stays locked, and so ends with the goroutine.
		if err := unix.PthreadSigmask(unix.SIG_SETMASK, &was, nil); err == nil {
			runtime.UnlockOSThread()
		}
	}()
	do()
}

// addFD is struct seccomp_notif_addfd.
type addFD struct {
	id                   uint64
	flags                uint32
	src, new, newFDFlags uint32
}

func (a *addFD) add(listener int) (number int, err error) {
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_ADDFD, uintptr(unsafe.Pointer(a)))
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}
