package procs

import (
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Program is the program that a stage must run: the command of a Spec, checked,
// but not searched in PATH.
type Program struct {
	// Argv, Arg0, Dir and TTY are as in Spec.
	Argv []string
	Arg0 *string
	// Env is the whole environment, including a SHELL that Spec adds.
	Env []string
	Dir string
	TTY bool
}

// Stage is a process that is executed in place of a command: it confines the
// command, starts it and ends with its status. It is started once, in "/", with
// the descriptors 0 to 2 of the command. Start makes it the leader of a session
// and does not make the command's terminal its controlling one.
//
// Start closes the Files, and in the end the Leash, of the Stage that it gets from
// [Spec.Stage]. Any other Stage must be closed with Close.
type Stage struct {
	Path string
	Argv []string
	Env  []string
	// Files are descriptors 3 and up.
	Files []*os.File
	// Cloneflags are the namespaces to make, and AmbientCaps the capabilities
	// in them; ids are not mapped. If the kernel refuses the namespaces, the
	// stage is started without them, with the text of the refusal as one more
	// argument, and reports it on the descriptors of the command.
	Cloneflags  uintptr
	AmbientCaps []uintptr
	// Leash, if not nil, is our end of a socket. The stage takes signals once it
	// has sent one byte or closed its end; until then signals are kept here.
	// When our end is closed, the stage kills everything that it started and
	// ends.
	Leash *os.File
	// Grace is how long the stage may take to kill everything that it started
	// before it is killed itself. If zero, the stage is killed at once, also by
	// the death of the agent, and everything that it started must die with it.
	// Grace needs a Leash.
	Grace time.Duration
}

func (s *Stage) closeFiles() {
	if s == nil {
		return
	}
	for _, f := range s.Files {
		_ = f.Close() // the child has its own
	}
}

// Close closes Files and Leash. It may be called on nil.
func (s *Stage) Close() {
	s.closeFiles()
	if s != nil && s.Leash != nil {
		_ = s.Leash.Close()
	}
}

// newStage forks and executes a stage.
func newStage(reaper *Reaper, stage *Stage, attr *syscall.ProcAttr) (*group, error) {
	for _, f := range stage.Files {
		attr.Files = append(attr.Files, f.Fd())
	}
	attr.Dir, attr.Env = "/", stage.Env
	attr.Sys.Cloneflags, attr.Sys.AmbientCaps = stage.Cloneflags, stage.AmbientCaps
	g, err := newGroup(reaper, stage.Path, stage.Argv, attr)
	if err != nil && stage.Cloneflags != 0 && err != syscall.EAGAIN && err != syscall.ENOMEM {
		attr.Sys.Cloneflags, attr.Sys.AmbientCaps = 0, nil
		g, err = newGroup(reaper, stage.Path, append(slices.Clip(stage.Argv), err.Error()), attr)
	}
	if err != nil {
		return nil, atStep("starting the sandbox", os.NewSyscallError("fork", err))
	}
	return g, nil
}

// leash is the connection to a running stage. The methods of a nil leash do
// nothing.
type leash struct {
	file   *os.File
	grace  time.Duration
	exited chan struct{} // closed once the stage is reaped

	mu     sync.Mutex
	ready  bool
	passes bool             // the stage passes signals on; else it is the command itself
	kept   []syscall.Signal // signals for when the stage is ready, each once
}

func newLeash(stage *Stage) *leash {
	if stage == nil || stage.Leash == nil {
		return nil
	}
	return &leash{file: stage.Leash, grace: stage.Grace, exited: make(chan struct{})}
}

// keep keeps sig if the stage does not take signals yet, and reports whether sig
// was kept.
func (l *leash) keep(sig syscall.Signal) bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ready && !slices.Contains(l.kept, sig) {
		l.kept = append(l.kept, sig)
	}
	return !l.ready
}

// passed returns the signal for a stage that passes sig on. Nothing can catch
// SIGSTOP.
func (l *leash) passed(sig syscall.Signal) syscall.Signal {
	if l == nil || sig != syscall.SIGSTOP {
		return sig
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.passes {
		return sig
	}
	return syscall.SIGTSTP
}

// deliver waits until the stage takes signals, or has ended, and sends the kept
// signals.
func (l *leash) deliver(send func(syscall.Signal) bool) {
	n, _ := l.file.Read(make([]byte, 1)) // an error means that the stage has ended, or has become the command
	l.mu.Lock()
	l.passes = n > 0
	l.mu.Unlock()
	for {
		l.mu.Lock()
		kept := l.kept
		l.kept = nil
		l.ready = len(kept) == 0
		l.mu.Unlock()
		if len(kept) == 0 {
			return
		}
		for _, sig := range kept {
			send(l.passed(sig))
		}
	}
}

// lingers reports whether the stage has a grace: then closing the leash tells it
// to end before it is killed.
func (l *leash) lingers() bool { return l != nil && l.grace > 0 }

// pull tells a lingering stage to end, and waits for its exit, at most its grace.
func (l *leash) pull() { pull(l) }

// pull tells all lingering stages to end, and waits for their exits, at most the
// longest grace.
func pull(leashes ...*leash) {
	var grace time.Duration
	for _, l := range leashes {
		if l.lingers() {
			_ = l.file.Close() // fails if it was closed before
			grace = max(grace, l.grace)
		}
	}
	if grace == 0 {
		return
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	for _, l := range leashes {
		if !l.lingers() {
			continue
		}
		select {
		case <-l.exited:
		case <-timer.C:
			return
		}
	}
}

// end notes that the stage was reaped. It is called once.
func (l *leash) end() {
	if l != nil {
		close(l.exited)
		_ = l.file.Close() // fails if pull has closed it
	}
}
