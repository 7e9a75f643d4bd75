package usernotify

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

// A caller gets a descriptor for the file, in each way: the call ends at once or waits for
// an answer, the two threads are kept on one CPU or not. Signals change nothing.
func TestGive(t *testing.T) {
	for _, way := range []struct {
		name     string
		together int
		wait     bool
		ended    bool
	}{
		{"at once", 0, false, true},
		{"waiting", 0, true, false},
		{"together", often, false, false},
		{"together, waiting", often, true, false},
	} {
		t.Run(way.name, func(t *testing.T) {
			Undisturbed(func() {
				defer signals(unix.Gettid())()
				listener, result := callAndWait(t)
				var call Call
				rig.Must(t, Receive(listener, &call))
				if !Valid(listener, call.ID) || Waiting(listener) {
					t.Error("the call is gone, or there is a second one")
				}
				r, w, err := os.Pipe()
				rig.Must(t, err)
				defer r.Close()
				g := Giver{near: way.together, last: call.Thread}
				number, ended, err := g.Give(listener, &call, int(w.Fd()), true, way.wait)
				if err != nil || ended != way.ended {
					t.Fatalf("ended %v (%v), expected %v", ended, err, way.ended)
				}
				if !ended {
					Return(listener, call.ID, int64(number))
				}
				w.Close()
				got := <-result
				if got != number {
					t.Fatalf("the caller got %d, not %d", got, number)
				}
				rig.Must(t, rig.Err(unix.Write(got, []byte("hello"))))
				var b [8]byte
				if n, err := r.Read(b[:]); string(b[:n]) != "hello" {
					t.Errorf("read %q (%v)", b[:n], err)
				}
				if flags, err := unix.FcntlInt(uintptr(got), unix.F_GETFD, 0); flags != unix.FD_CLOEXEC {
					t.Errorf("flags %#x (%v), asked for FD_CLOEXEC", flags, err)
				}
				unix.Close(got)
			})
		})
	}
}

// signals sends signals to a thread until the func that it returns is called.
func signals(thread int) (stop func()) {
	var done atomic.Bool
	var sending sync.WaitGroup
	sending.Go(func() {
		for !done.Load() {
			_ = unix.Tgkill(os.Getpid(), thread, unix.SIGURG) // which the runtime of Go ignores
		}
	})
	return func() { done.Store(true); sending.Wait() }
}

// Give to a call that is gone says so.
func TestGiveToNobody(t *testing.T) {
	Undisturbed(func() {
		listener, result := callAndWait(t)
		var call Call
		rig.Must(t, Receive(listener, &call))
		Respond(listener, call.ID, unix.EPERM)
		<-result
		for _, g := range []Giver{{}, {near: 1, last: call.Thread}} {
			if _, ended, err := g.Give(listener, &call, 0, false, false); ended || err != unix.ENOENT {
				t.Errorf("ended %v, error %v; expected ENOENT", ended, err)
			}
		}
	})
}

// callAndWait has a thread make a call that waits for an answer, and returns the listener
// and the call's result, -1 if it fails. The thread ends with the call.
func callAndWait(t *testing.T) (listener int, result chan int) {
	t.Helper()
	type filtered struct {
		listener int
		err      error
	}
	ready := make(chan filtered)
	result = make(chan int, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the filter goes with the thread
		listener, err := filterAcct()
		ready <- filtered{listener, err}
		if err == nil {
			n, _, errno := unix.Syscall(unix.SYS_ACCT, 0, 0, 0)
			if errno != 0 {
				n = ^uintptr(0)
			}
			result <- int(n)
		}
	}()
	f := <-ready
	if f.err != nil {
		t.Skipf("no listener: %v", f.err)
	}
	t.Cleanup(func() { unix.Close(f.listener) })
	return f.listener, result
}

// filterAcct puts a filter on the calling thread that leaves acct(2), which nobody here
// calls otherwise, to a listener.
func filterAcct() (listener int, err error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, err
	}
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_ACCT, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	arg := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	n, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&arg)))
	if errno != 0 {
		return 0, os.NewSyscallError("seccomp", errno)
	}
	return int(n), nil
}
