package usernotify

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// together keeps the thread of a call that waits, and the calling one, on the same CPU.
// The zero value is ready. The calling thread has to be locked to its goroutine.
//
// The other one sees nothing of it: it waits from begin to end. Others can see that it
// has one CPU. If somebody gives it other CPUs meanwhile it keeps those.
type together struct {
	both        bool
	here        affinity
	mine, other affinity // before
}

// affinity is a set of CPUs as the kernel has it. One with more CPUs than fit in is
// not read.
type affinity struct {
	size uintptr // in bytes
	set  unix.CPUSet
}

// get reads the CPUs of a thread; 0 is the calling one.
func (a *affinity) get(thread int) bool {
	n, _, errno := syscall.RawSyscall(unix.SYS_SCHED_GETAFFINITY, uintptr(thread), unsafe.Sizeof(a.set), uintptr(unsafe.Pointer(&a.set)))
	a.size = n
	return errno == 0
}

// give has a thread run on these CPUs only.
func (a *affinity) give(thread int) bool {
	_, _, errno := syscall.RawSyscall(unix.SYS_SCHED_SETAFFINITY, uintptr(thread), a.size, uintptr(unsafe.Pointer(&a.set)))
	return errno == 0
}

// begin keeps the thread here, and returns false if nothing has changed: there is one CPU
// only, or the kernel refuses.
func (t *together) begin(thread int) bool {
	var cpu uint32
	_, _, errno := syscall.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0)
	if errno != 0 || !t.mine.get(0) || t.mine.set.Count() == 1 || !t.other.get(thread) {
		return false
	}
	t.here = affinity{size: t.mine.size}
	t.here.set.Set(int(cpu))
	t.both = t.here.give(thread)
	if t.both {
		t.here.give(0)
	}
	return t.both
}

// end lets both run where they did.
func (t *together) end(thread int) {
	if !t.both {
		return
	}
	t.both = false
	if now := (affinity{}); now.get(thread) && now == t.here {
		t.other.give(thread)
	}
	t.mine.give(0)
}
