package confine

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/supervise"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/sandbox"
)

// supervisor is the part of init that looks after a running command: it passes
// signals on, reaps, and kills the processes that the command leaves behind.
type supervisor struct {
	pidNS, newSession bool
	signals           chan os.Signal
	leash             *os.File
	inner             *innerInit // in an outer init, whose command is the inner one; else nil
	isInner           bool       // this is the inner init of two
	// calls answers the command's calls, and traces its processes around an execve.
	calls *supervise.Notifier

	mu    sync.Mutex // protects the fields below
	pid   int        // of the command; 0 before it is started
	ended bool       // the command is being reaped, so another process may get its pid
	lost  *loss      // why init has ended the command; nil: init has not
	let   bool       // the leash was closed, and so the command was killed
}

// newSupervisor catches signals and then sends a byte on the leash. The agent holds
// signals back until the byte comes, because an earlier signal would end init, or be lost.
func newSupervisor(cfg *config, r role) (*supervisor, error) {
	s := &supervisor{
		pidNS:      cfg.Backend.Has(sandbox.PIDNS),
		newSession: cfg.NewSession,
		isInner:    cfg.Backend.Has(sandbox.Supervised) && r != roleOuter,
		// Signals that come before the command is started wait in the channel.
		signals: make(chan os.Signal, 2*len(caught())),
	}
	// A signal that init inherited as ignored, as from nohup(1), is not caught, because the
	// command has to ignore it too.
	signal.Notify(s.signals, slices.DeleteFunc(caught(), signal.Ignored)...)
	if err := unix.SetNonblock(leashFD, true); err != nil {
		return nil, fmt.Errorf("taking the leash: %w", os.NewSyscallError("fcntl", err))
	}
	s.leash = os.NewFile(leashFD, "leash")
	if _, err := s.leash.Write([]byte{1}); err != nil {
		os.Exit(killed) // the other end is closed already
	}
	go s.heed()
	return s, nil
}

// caught returns the signals that init passes on to the command.
func caught() []os.Signal {
	return []os.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGALRM, unix.SIGCONT, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGWINCH,
	}
}

// fromTerminal reports whether sig may come from the terminal. The terminal also sends it to a
// command in the same session, so init must not send it a second time.
func fromTerminal(sig os.Signal) bool {
	switch sig {
	case unix.SIGINT, unix.SIGQUIT, unix.SIGCONT, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGWINCH:
		return true
	}
	return false
}

// heed waits until the other end of the leash is closed, and then ends the
// command, every process that the command has started, and init.
func (s *supervisor) heed() {
	_, _ = s.leash.Read(make([]byte, 1)) // nothing is ever sent, so this is the end
	if s.pidNS {
		os.Exit(killed)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.let = true
	if s.pid == 0 {
		os.Exit(killed)
	}
	if !s.ended {
		// attend reaps the command, and then kills the processes that are left.
		_ = unix.Kill(s.pid, unix.SIGKILL) // this cannot fail: a child of the same user
	}
}

// bear starts the command with fork, and keeps its pid. Until the pid is known, forward sends
// no signal and heed waits.
func (s *supervisor) bear(fork func() (pid int, err error)) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pid, err = fork()
	return err
}

// attend passes signals on and reaps every orphan until the command has ended.
// Then it kills the processes that the command has left behind, and returns the command's
// exit code.
func (s *supervisor) attend() (code int, err error) {
	go s.forward()
	for {
		pid, err := s.calls.Ended()
		if err != nil {
			return 0, err
		}
		s.mu.Lock()
		s.ended = pid == s.pid
		let := s.let
		s.mu.Unlock()
		var status syscall.WaitStatus
		_, err = syscall.Wait4(pid, &status, 0, nil)
		s.calls.Reaped(pid)
		if err == syscall.ECHILD && pid != s.pid {
			continue // a child could not execute its program, and ForkExec has reaped it
		}
		if err != nil {
			return 0, os.NewSyscallError("wait4", err)
		}
		if status.Stopped() {
			// A child has made its parent the tracer (PTRACE_TRACEME), and only the
			// tracer could let it go on. Init traces nobody in this way, so the child is killed.
			s.mu.Lock()
			s.ended = false
			_ = unix.Kill(pid, unix.SIGKILL)
			s.mu.Unlock()
			continue
		}
		if !s.ended {
			continue
		}
		if s.inner != nil && !s.inner.finished() {
			code := killed // also if the inner init was about to crash when the leash was closed
			if !let {
				code = s.inner.died(status)
			}
			s.killRest()
			return code, nil
		}
		s.killRest()
		s.finish()
		if s.lost != nil {
			return s.lost.tell(), nil
		}
		if status.Signaled() {
			return 128 + int(status.Signal()), nil
		}
		return status.ExitStatus(), nil
	}
}

// forward sends the command the signals that init receives.
func (s *supervisor) forward() {
	for sig := range s.signals {
		if !s.newSession && fromTerminal(sig) {
			continue
		}
		s.mu.Lock()
		to := s.pid
		if s.newSession && s.inner == nil {
			to = -to // the command's process group, as without a sandbox
		}
		number := sig.(syscall.Signal)
		if s.newSession && s.inner == nil && sig == unix.SIGTSTP {
			number = unix.SIGSTOP // nobody else sends it, and the kernel would not stop a group that no shell can continue
		}
		if !s.ended {
			_ = unix.Kill(to, number) // the group may be empty by now
		}
		s.mu.Unlock()
	}
}

// killRest kills the processes that the command has left behind. In a PID namespace the end
// of init does that. No other goroutine may wait for children meanwhile.
func (s *supervisor) killRest() {
	if !s.pidNS {
		killTree()
	}
}

// killTree kills and reaps all descendants of init. Init is their subreaper, so
// when a process dies, its children become children of init.
func killTree() {
	const maxUnseen = 1000 // lists without a child, before killTree gives up
	for unseen := 0; unseen < maxUnseen; {
		options := 0
		seen := procs.Children()
		for _, pid := range seen {
			_ = unix.Kill(pid, unix.SIGKILL) // the child is not reaped, so the pid is still its own
		}
		if len(seen) == 0 {
			// Either no child is left, or a child moved during the listing, and a
			// wait could take forever.
			options = syscall.WNOHANG
			unseen++
		}
		for {
			pid, err := syscall.Wait4(-1, nil, options, nil)
			if err == syscall.ECHILD {
				return
			}
			if pid == 0 && err == nil {
				break
			}
			options = syscall.WNOHANG
		}
	}
}
