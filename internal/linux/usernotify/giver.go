package usernotify

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Giver gives callers descriptors. The zero value is ready. Every thread that gives
// has its own, to which the goroutine has to be locked.
//
// To install a descriptor the kernel wakes the caller, and the caller the giver, each
// on an idle CPU if there is one, whatever [WakeHere] has asked for. A giver that has
// seen this take long keeps both on one CPU, if the caller is the one that it gave to
// last: when several threads are busy, another CPU may be the better one for this one.
type Giver struct {
	near int    // how many descriptors may be given so before it measures again without
	last uint32 // the thread that it gave to
}

const (
	// long is more than two wakes take on a host that is not virtual.
	long = 20 * time.Microsecond
	// often is how many descriptors are given on one CPU once one took long.
	often = 128
)

// Give gives the caller a new descriptor for the open file that fd is here, under the
// lowest free number there. Either this ends the call, or ended is false: the call
// waits for [Return] with the number, and in between this process can close its own
// descriptor. With wait, ended is always false. The error is an errno: ENOENT if the
// caller is gone, or EMFILE at the caller's limit of open files; but for ENOENT the call
// waits for [Respond] then.
//
// All signals have to be blocked on the calling thread. The kernel answers an
// interrupted Give with success and the value 0, whether or not 0 is a descriptor.
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
