package probe

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/internal/linux/usernotify"
	"github.com/execagent/execagent/internal/sandbox/enforce"
	"github.com/execagent/execagent/sandbox"
)

// The text that the argument of the call points to, and the text that the caller must read
// from the descriptor that it gets.
const (
	supervisedQuestion = "a path in the memory of the caller"
	supervisedAnswer   = "what is in the file"
)

// Steps of a failure from which hostFacts.remedy guesses the cause.
const (
	stepMemory   = "reading the memory of the caller"
	stepTrace    = "tracing the caller"
	stepRestrict = "restricting a thread"
)

// trySupervised starts a child under a ruleset and a filter, as a supervisor starts a command
// (supervised.md 2). It reads the memory that a call of the child points to, and gives the
// child a descriptor as the result of the call.
func (r *report) trySupervised() {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if !r.note(sandbox.Supervised, "making a file for the caller", err) {
		return
	}
	type started struct{ listener, pid int }
	result := make(chan started, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with this func
		var s started
		defer func() { result <- s }()
		rights := sandbox.Ruleset{FS: unix.LANDLOCK_ACCESS_FS_MAKE_DIR}
		if !r.note(sandbox.Supervised, stepRestrict, enforce.RestrictThread(rights)) {
			return
		}
		s.listener, err = loadFilter(askedCall, unix.SECCOMP_RET_USER_NOTIF,
			unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
		if !r.note(sandbox.Supervised, "loading a filter with a listener", err) {
			return
		}
		args := slices.Clone(os.Args)
		args[2] = whatCaller
		s.pid, err = syscall.ForkExec("/proc/self/exe", args, &syscall.ProcAttr{Files: []uintptr{0, 1, 2}})
		r.note(sandbox.Supervised, "starting a caller", err)
	}()
	s := <-result
	if s.pid == 0 {
		return
	}
	// At sandbox.LevelReads and above, a supervisor traces each process around its execve.
	r.note(sandbox.Supervised, stepTrace, traceOnce(s.pid))
	usernotify.Undisturbed(func() { err = serveCaller(s.listener, pair) })
	r.note(sandbox.Supervised, stepMemory, err)
	unix.Close(s.listener) // lets the call of a caller that still waits fail
	var status syscall.WaitStatus
	if _, waited := syscall.Wait4(s.pid, &status, 0, nil); waited == nil && err == nil && status.ExitStatus() != 0 {
		r.note(sandbox.Supervised, "giving the caller a descriptor", fmt.Errorf("it ended with code %d", status.ExitStatus()))
	}
}

// traceOnce traces a child for a moment. The tracer is a thread that ends, because the end of
// the tracer detaches the child (ptrace(2)). It must not be the main thread, because that
// thread would not end.
func traceOnce(pid int) error {
	result := make(chan error, 1)
	var trace func()
	trace = func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with this func
		if unix.Gettid() == unix.Getpid() {
			other := make(chan struct{})
			go func() { defer close(other); trace() }()
			<-other
			runtime.UnlockOSThread()
			return
		}
		_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, 0, 0, 0)
		if errno != 0 {
			result <- os.NewSyscallError("ptrace", errno)
			return
		}
		result <- nil
	}
	go trace()
	return <-result
}

// serveCaller receives the one call of the caller, reads its question, and gives
// it an end of a socket pair from which it can read the answer.
func serveCaller(listener int, pair [2]int) error {
	var call usernotify.Call
	if err := receive(listener, &call); err != nil {
		return err
	}
	question, err := linux.ReadString(int(call.Thread), call.Args[0], new(linux.PathBuffer))
	if err != nil {
		return err
	}
	if question != supervisedQuestion {
		return errors.New("the memory holds something else")
	}
	if _, err := unix.Write(pair[0], []byte(supervisedAnswer)); err != nil {
		return err
	}
	var g usernotify.Giver
	_, _, err = g.Give(listener, &call, pair[1], true, false)
	return err
}

// callSupervisor is the main function of the caller. It returns the exit code: 0 if the
// caller got the right descriptor.
func callSupervisor() int {
	question := []byte(supervisedQuestion + "\x00")
	fd, _, errno := unix.Syscall(askedCall, uintptr(unsafe.Pointer(&question[0])), 0, 0)
	if errno != 0 {
		return 1
	}
	answer := make([]byte, 2*len(supervisedAnswer))
	n, err := unix.Read(int(fd), answer)
	if err != nil || string(answer[:n]) != supervisedAnswer {
		return 1
	}
	return 0
}
