package probe

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/internal/linux/usernotify"
	"github.com/execagent/execagent/sandbox"
)

// The system calls that the two filters of the probe decide about. The runtime makes
// neither of them, and every architecture has both.
const (
	forbiddenCall = unix.SYS_GETPPID // refused by the filter itself
	askedCall     = unix.SYS_GETSID  // left to a listener
)

// trySeccomp loads two filters for one thread, and makes sure that both work.
func (r *report) trySeccomp() {
	runtime.LockOSThread()
	r.note(sandbox.Pidfd, "taking a descriptor", takeOwn())
	err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	r.note(sandbox.UserNotify, "setting no_new_privs", err)
	if !r.note(sandbox.Seccomp, "setting no_new_privs", err) {
		return
	}
	_, err = loadFilter(forbiddenCall, unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM), 0)
	if r.note(sandbox.Seccomp, "loading a filter", err) {
		_, _, errno := unix.RawSyscall(forbiddenCall, 0, 0, 0)
		r.note(sandbox.Seccomp, "calling what the filter forbids", refusedBy(errno))
	}
	// Filter.Load of package enforce uses the same flags for the filter of a command.
	listener, err := loadFilter(askedCall, unix.SECCOMP_RET_USER_NOTIF,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
	if !r.note(sandbox.UserNotify, "loading a filter with a listener", err) {
		return
	}
	defer unix.Close(listener)
	answered := make(chan error, 1)
	go func() { answered <- answerOne(listener) }()
	_, _, errno := unix.Syscall(askedCall, 0, 0, 0)
	r.note(sandbox.UserNotify, "answering a call", errors.Join(<-answered, refusedBy(errno)))
}

// takeOwn duplicates a descriptor of this process with the calls with which the init of a
// command duplicates a descriptor of the command. A container engine's filter cannot tell
// these two cases apart. The init has all other rights that it needs over its command.
func takeOwn() error {
	fd, err := linux.DuplicateFD(unix.Gettid(), int(os.Stdout.Fd()))
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// refusedBy is refused for the errno of a call that must fail with EPERM. An errno of 0
// means that the call has succeeded.
func refusedBy(errno unix.Errno) error {
	if errno == 0 {
		return errNotRefused
	}
	return refused(errno, unix.EPERM)
}

// loadFilter loads a filter for this thread. The filter does action for call and allows
// every other call. loadFilter returns a listener if the flags ask for one, and 0 otherwise.
func loadFilter(call, action uint32, flags uintptr) (int, error) {
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // nr of struct seccomp_data
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: action},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	arg := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	n, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&arg)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}

// answerOne receives one call from a listener and answers it with EPERM.
func answerOne(listener int) error {
	var asked usernotify.Call
	if err := receive(listener, &asked); err != nil {
		return err
	}
	usernotify.Respond(listener, asked.ID, unix.EPERM)
	return nil
}

// receive receives one call. It tries again if a signal has interrupted this thread, or the
// thread that made the call, because that thread then makes the call again.
func receive(listener int, call *usernotify.Call) error {
	for {
		err := usernotify.Receive(listener, call)
		if err == nil {
			return nil
		}
		if err != unix.EINTR && (err != unix.ENOENT || usernotify.HungUp(listener)) {
			return fmt.Errorf("receiving a call: %w", err)
		}
	}
}
