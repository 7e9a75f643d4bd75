package local

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/secretenv"
	"github.com/execagent/execagent/procs"
)

// The hidden first arguments of this program: sessionArg makes it the leader of a session with a
// terminal of its own, and jobArg the program in that session that runs the command. jobArg is
// followed by one of asks and alone.
const (
	sessionArg = "terminal-session"
	jobArg     = "sandbox-job"
	asks       = "asks"  // the user can be asked
	alone      = "alone" // nobody can be asked
	kills      = "kills" // kill what the command leaves behind
	leaves     = "leaves"
)

// Descriptors of a session, besides the three of its command.
const (
	terminalFD  = 3 // its terminal
	controlFD   = 4 // orders and reports
	questionsFD = 5 // for the job
	messagesFD  = 6 // for the job
	// Descriptors of a job: for questions, and for what it says itself.
	askFD = 3
	sayFD = 4
)

// A packet of controlFD has two bytes: what, and a number. Orders for a session:
const (
	orderGroup    = 'g' // a signal for the process group of the job
	orderJob      = 'j' // a signal for the job
	orderContinue = 'c' // 1: in the foreground, 0: in the background
)

// Reports of a session:
const (
	jobStopped = 's' // the signal
	jobExited  = 'x' // the exit code, 128+n after signal n
)

// SessionMain is the main of the leader of a session; ok is false if this process is none. main calls it
// before anything else, with os.Args. The job, which is hidden too, is an agent sandbox, see [Job].
func SessionMain(args []string) (code int, ok bool) {
	if len(args) < 5 || args[1] != sessionArg {
		return 0, false
	}
	if err := leadSession(args); err != nil {
		program.Complain(os.Stderr, fmt.Errorf("sandbox: %w", err))
		return 1, true
	}
	return 0, true
}

// Job makes sys that of a job, if the arguments say so: it removes the hidden ones.
func Job(sys program.System) program.System {
	if len(sys.Args) < 2 || sys.Args[0] != jobArg {
		return sys
	}
	sys.Job = true
	if sys.Args[1] == asks {
		sys.Questions = os.NewFile(askFD, "questions")
	}
	sys.Args, sys.Stderr = sys.Args[2:], os.NewFile(sayFD, "messages")
	return sys
}

// session is the leader of the session, and the parent of the job. A parent in the same session
// lets the job stop: the kernel does not stop a process group that nobody could continue.
type session struct {
	mu  sync.Mutex // guards the field below
	job int        // 0: it has been reaped
}

// leadSession starts the job, carries out orders and reports what becomes of the job.
func leadSession(args []string) error {
	for fd := terminalFD; fd <= messagesFD; fd++ {
		unix.CloseOnExec(fd)
	}
	runtime.LockOSThread() // the job has to end with this thread
	front, kill, asked := args[2] == "front", args[3] == kills, args[4]
	attr := &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2, questionsFD, messagesFD},
		Sys: &syscall.SysProcAttr{Setpgid: true, Foreground: front, Ctty: terminalFD, Pdeathsig: syscall.SIGKILL},
	}
	if kill {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("becoming a subreaper: %w", os.NewSyscallError("prctl", err))
		}
	}
	pid, err := syscall.ForkExec("/proc/self/exe", append([]string{args[0], jobArg, asked}, args[5:]...), attr)
	if err != nil {
		return fmt.Errorf("starting this program again in a session of its own: %w", err)
	}
	// These are ignored only now, because the job would inherit it.
	signal.Ignore(syscall.SIGTTOU, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM)
	if _, _, err := secretenv.Take(procs.Denied); err != nil { // the job has them
		program.Complain(os.Stderr, fmt.Errorf("keys stay readable in /proc/%d/environ: %w", os.Getpid(), err))
	}
	s := &session{job: pid}
	go s.obey()
	code := s.watch(pid)
	if kill {
		killChildren()
	}
	_, _ = unix.Write(controlFD, []byte{jobExited, byte(code)}) // if nobody reads, this process is about to be killed
	return nil
}

// watch reports when the job stops, until it has ended.
func (s *session) watch(pid int) (code int) {
	for {
		// The job is reaped under the mutex, so that no signal goes to another process of its number.
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WSTOPPED|unix.WNOWAIT, nil)
		if err == unix.EINTR {
			continue
		}
		var status unix.WaitStatus
		s.mu.Lock()
		n, err := unix.Wait4(pid, &status, unix.WUNTRACED|unix.WNOHANG, nil)
		if n == pid && !status.Stopped() {
			s.job = 0
		}
		s.mu.Unlock()
		switch {
		case err != nil:
			return 1
		case n == 0: // an order has continued the job meanwhile
		case status.Stopped():
			_, _ = unix.Write(controlFD, []byte{jobStopped, byte(status.StopSignal())})
		case status.Signaled():
			return 128 + int(status.Signal())
		default:
			return status.ExitStatus()
		}
	}
}

// obey carries out orders.
func (s *session) obey() {
	for {
		var order [2]byte
		n, err := unix.Read(controlFD, order[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n != len(order) {
			os.Exit(1) // agent sandbox is gone, and the job is killed
		}
		s.carryOut(order[0], int(order[1]))
	}
}

func (s *session) carryOut(what byte, number int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.job == 0 {
		return
	}
	// A job that has just ended needs no signal and no terminal.
	switch what {
	case orderGroup:
		_ = unix.Kill(-s.job, unix.Signal(number))
	case orderJob:
		_ = unix.Kill(s.job, unix.Signal(number))
	case orderContinue:
		group := unix.Getpgrp()
		if number == 1 {
			group = s.job
		}
		_ = unix.IoctlSetPointerInt(terminalFD, unix.TIOCSPGRP, group)
		_ = unix.Kill(-s.job, unix.SIGCONT)
	}
}

// killChildren kills everything that the job has left behind. It is the child of this process now.
func killChildren() {
	for children := procs.Children(); len(children) > 0; children = procs.Children() {
		for _, pid := range children {
			_ = unix.Kill(pid, unix.SIGKILL)    // it is not reaped, so the pid is still its own
			_, _ = unix.Wait4(pid, nil, 0, nil) // its children are those of this process now
		}
	}
}
