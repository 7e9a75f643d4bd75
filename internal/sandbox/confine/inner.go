package confine

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/internal/sandbox/enforce"
	"github.com/execagent/execagent/internal/sandbox/judge"
	"github.com/execagent/execagent/procs"
)

// A supervised command has two inits. The inner one starts the command, as any
// init does, and does its calls. Every thread of the inner one is in a Landlock domain,
// the ceiling of what the inner init may do. The kernel puts a domain on one thread, and
// only a thread whose domain contains the command's can read the command's
// memory. So the domain has to exist before the process has a second thread:
// the outer init puts it on a thread of its own, and forks the inner init from that thread.
//
//	agent ──► outer init ── fork from a thread under the ceiling ──► inner init ── fork from T1 ──► command
//	  leash ──┘  └── leash, signals, exit code ──────────────────────┘ └── listener
//
// The outer init takes no part in the calls. It passes signals on. If the inner
// init dies, for whatever reason, the outer one becomes the parent of the command's
// processes and kills them: without its supervisor a command can change nothing
// more, but it could go on to read and compute.
//
// The inner init sends a byte on the leash when it is ready for signals, and
// a second one when it ends in order, even if there is no program to execute.
// Its exit code is the command's only if the second byte has come, because Go's runtime
// also ends a process with a code, 2, when the process has failed beyond help, as for
// want of memory.

// inner marks the arguments of the inner init ([isMarked]).
const inner = "inner"

// startInner starts the inner init, and returns once the inner init takes signals or has
// ended.
func (t *target) startInner() error {
	ours, theirs, err := newLeash()
	if err != nil {
		return err
	}
	err = onThreadOfItsOwn(func() error { return t.forkInner(int(theirs.Fd())) })
	_ = theirs.Close()
	if t.config.isManaged() {
		unix.Close(gateFD) // only the inner init holds it, so that the gate notices its end
	}
	if t.config.Policy.Transparent {
		unix.Close(heldFD)
	}
	if t.config.Rules != nil {
		unix.Close(t.config.judgeFD())
	}
	if t.config.notes() {
		unix.Close(t.config.notesFD())
	}
	if err != nil {
		return err
	}
	// If the inner init has ended there is no byte; attend notices that too.
	_, _ = ours.Read(make([]byte, 1))
	// The inner init ends when this end of its leash is closed.
	t.supervisor.inner = &innerInit{leash: ours}
	return unix.Fstat(2, &t.supervisor.inner.stderr)
}

// innerInit is what the outer init knows about the inner one.
type innerInit struct {
	leash  *os.File
	stderr unix.Stat_t // of the inner init and the command when they started
}

// finish tells the outer init that the exit code of this inner one is the command's. Any other
// init has nobody to tell.
func (s *supervisor) finish() {
	if s.isInner {
		_, _ = s.leash.Write([]byte{1}) // this fails only if the outer init is gone
	}
}

// finished reports whether the inner init, which has ended, has ended in order.
func (i *innerInit) finished() bool {
	n, _ := i.leash.Read(make([]byte, 1)) // its end of the leash is closed, so this is a byte or the end
	return n == 1
}

// died writes to the command's stderr how the inner init has ended, and returns the
// exit code of the outer one, which has closed its own stderr by now. So died looks for
// a process of the command that still has the pipe or terminal that the command was
// started with, and opens that one. It opens no other file that the
// command has put there.
func (i *innerInit) died(status syscall.WaitStatus) (code int) {
	how := fmt.Sprintf("exit code %d", status.ExitStatus())
	if status.Signaled() {
		how = fmt.Sprintf("a signal: %s", status.Signal())
	}
	lost := &loss{reason: fmt.Errorf("the supervisor was ended by %s", how), stderr: -1}
	for _, pid := range procs.Children() {
		for _, number := range judge.ErrorFDs {
			if lost.stderr = i.reopen(pid, number); lost.stderr >= 0 {
				return lost.tell()
			}
		}
	}
	return lost.tell()
}

// reopen opens the descriptor of the process pid for writing, if it is the pipe or the
// terminal that the command was started with. Otherwise it returns -1.
func (i *innerInit) reopen(pid, number int) int {
	found, err := unix.Open(fmt.Sprintf("/proc/%d/fd/%d", pid, number), unix.O_PATH|unix.O_CLOEXEC, 0)
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
// that thread.
func (t *target) forkInner(leash int) error {
	if err := linux.DropCaps(); err != nil {
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
		files = append(files, resultFD) // gateFD is the same number
	}
	if c.Policy.Transparent {
		files = append(files, heldFD)
	}
	if c.Rules != nil {
		files = append(files, uintptr(c.judgeFD()))
	}
	if c.notes() {
		files = append(files, uintptr(c.notesFD()))
	}
	environ := append([]string{threadsOfSupervisor}, beLax()...)
	err := t.supervisor.bear(func() (int, error) {
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

// threadsOfSupervisor is for an init that answers calls and checks programs. One of its threads
// receives calls, one checks a program and one waits for children. With this number each keeps
// its processor of the runtime while it is in a system call, so the runtime's monitor does not
// have to wake up for it.
const threadsOfSupervisor = "GOMAXPROCS=4"
