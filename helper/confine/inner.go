package confine

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/caps"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/sandbox/enforce"
)

// A supervised command has two inits. The inner one starts the command, as any
// init does, and does its calls. All of the inner one is in a Landlock domain,
// the ceiling of what it may do. The kernel makes a domain for one thread, and
// only a thread whose domain contains the command's can read the command's
// memory. So the domain has to be there before the process has a second thread:
// the outer init puts it on a thread of its own, and forks the inner one from it.
//
//	agent ──► outer init ── fork from a thread under the ceiling ──► inner init ── fork from T1 ──► command
//	  leash ──┘  └── leash, signals, exit code ──────────────────────┘ └── listener
//
// The outer init has no part in the calls. It passes signals on, and when the
// inner one dies of whatever, it kills what is left of the command, which has got
// it as its new parent by then: without its supervisor a command can change
// nothing more, but it could go on to read and compute.
//
// The inner init sends a byte on the leash when it is ready for signals, and
// another one when it ends as it should, also where there is no program to execute.
// Its exit code is the command's only if the second one has come: the runtime also
// ends a process with a code, 2, that has failed beyond help, as for want of memory.

// inner is the third of the four arguments of the inner init. The fourth is empty,
// so that no other command line looks like this one.
const inner = "inner"

// isInner tells whether a process with these arguments is the inner one.
func isInner(args []string) bool { return len(args) == 4 && args[2] == inner && args[3] == "" }

// startInner starts the inner init, and returns once that takes signals or has
// ended.
func (t *target) startInner(s *supervisor) error {
	ours, theirs, err := newLeash()
	if err != nil {
		return err
	}
	err = onThreadOfItsOwn(func() error { return t.forkInner(s, int(theirs.Fd())) })
	_ = theirs.Close()
	if t.config.isManaged() {
		unix.Close(gateFD) // the inner init alone speaks to the gate, which so sees its end
	}
	if t.config.Rules != nil {
		unix.Close(t.config.judgeFD())
	}
	if err != nil {
		return err
	}
	// An end without a byte is the end of the inner init, which attend sees too.
	_, _ = ours.Read(make([]byte, 1))
	// The inner init ends when its leash is let go.
	s.inner = &innerInit{leash: ours}
	return unix.Fstat(2, &s.inner.stderr)
}

// innerInit is what the outer init knows of the inner one.
type innerInit struct {
	leash  *os.File
	stderr unix.Stat_t // what the inner init and the command were given
}

// finish tells the outer init that the exit code of this one is the command's.
func (s *supervisor) finish() {
	if isInner(os.Args) {
		_, _ = s.leash.Write([]byte{1}) // an outer init that is gone needs to know nothing
	}
}

// finished tells whether the inner init, which has ended, has ended as it should.
func (i *innerInit) finished() bool {
	n, _ := i.leash.Read(make([]byte, 1)) // its end of the leash is closed, so there is a byte or the end
	return n == 1
}

// died tells the command's stderr how the inner init has ended, and returns the
// exit code of the outer one. The outer init holds its own stderr
// open no longer. So it looks for a process that the command has left, whose
// descriptor 2 is still the pipe or terminal that was given to it: it opens
// nothing else, whatever the command has put there.
func (i *innerInit) died(status syscall.WaitStatus) (code int) {
	how := fmt.Sprintf("exit code %d", status.ExitStatus())
	if status.Signaled() {
		how = fmt.Sprintf("a signal: %s", status.Signal())
	}
	lost := &loss{reason: fmt.Errorf("the supervisor was ended by %s", how), stderr: -1}
	for _, pid := range procs.Children() {
		if lost.stderr = i.reopen(pid); lost.stderr >= 0 {
			break
		}
	}
	return lost.tell()
}

// reopen opens descriptor 2 of that process for writing, if it is the pipe or the
// terminal that the command was given, and returns -1 otherwise.
func (i *innerInit) reopen(pid int) int {
	found, err := unix.Open(fmt.Sprintf("/proc/%d/fd/2", pid), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	defer unix.Close(found)
	var st unix.Stat_t
	kind := i.stderr.Mode & unix.S_IFMT
	if err := unix.Fstat(found, &st); err != nil || st.Dev != i.stderr.Dev || st.Ino != i.stderr.Ino || kind != unix.S_IFIFO && kind != unix.S_IFCHR {
		return -1
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", found), unix.O_WRONLY|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1
	}
	return fd
}

// forkInner puts the ceiling on the calling thread and starts the inner init from
// it.
func (t *target) forkInner(s *supervisor, leash int) error {
	if err := caps.Drop(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", os.NewSyscallError("prctl", err))
	}
	c := t.config
	if err := enforce.RestrictThread(t.policy.SupervisorRuleset(c.Backend.Landlock, c.Shm)); err != nil {
		return err
	}
	files := []uintptr{0, 1, 2, configFD, uintptr(leash)}
	if c.connects() || c.isManaged() {
		files = append(files, resultFD) // or gateFD, which is the same
	}
	if c.Rules != nil {
		files = append(files, uintptr(c.judgeFD()))
	}
	environ := append([]string{threadsOfSupervisor}, beLax()...)
	err := s.bear(func() (int, error) {
		return syscall.ForkExec("/proc/self/exe", []string{c.Argv0, Arg, inner, ""}, &syscall.ProcAttr{
			Env:   environ,
			Files: files,
		})
	})
	if err != nil {
		return fmt.Errorf("starting the supervisor: %w", os.NewSyscallError("fork", err))
	}
	return nil
}

// threadsOfSupervisor is for an init that answers calls and checks programs. It has a thread
// that receives calls, one that checks a program and one that waits for children. Each keeps
// its place while it is in a system call, and the runtime's monitor does not have to wake up
// for it.
const threadsOfSupervisor = "GOMAXPROCS=4"

// isOuter tells whether this process is the outer init of a supervised command.
func (c *config) isOuter() bool { return c.Backend.Has(sandbox.Supervised) && !isInner(os.Args) }
