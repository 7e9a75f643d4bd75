package usernotify

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// together keeps two threads on the same CPU: the thread of a call that waits, and the calling
// thread. The zero value is ready for use. The goroutine must be locked to the calling thread.
//
// The waiting thread cannot see the change, because it waits from begin to end. Other threads can
// see that it has only one CPU. If another program sets its CPUs meanwhile, they stay.
type together struct {
	both        bool
	here        affinity
	mine, other affinity // CPUs before begin
}

// affinity is a set of CPUs in the format of the kernel. A larger set cannot be read.
type affinity struct {
	size uintptr // in bytes
	set  unix.CPUSet
}

// get reads the CPUs of a thread, where 0 is the calling thread. It reports whether this succeeded.
func (a *affinity) get(thread int) bool {
	n, _, errno := syscall.RawSyscall(unix.SYS_SCHED_GETAFFINITY, uintptr(thread), unsafe.Sizeof(a.set), uintptr(unsafe.Pointer(&a.set)))
	a.size = n
	return errno == 0
}

// give makes a thread run only on these CPUs. It reports whether this succeeded.
func (a *affinity) give(thread int) bool {
	_, _, errno := syscall.RawSyscall(unix.SYS_SCHED_SETAFFINITY, uintptr(thread), a.size, uintptr(unsafe.Pointer(&a.set)))
	return errno == 0
}

// begin moves both threads to the current CPU. It returns false if nothing has changed, because
// there is only one CPU or the kernel refuses.
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

// end restores the CPUs of both threads.
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
