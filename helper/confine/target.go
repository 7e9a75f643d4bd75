package confine

import (
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/caps"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/sandbox/enforce"
)

// target starts the command of an init.
type target struct {
	config *config
	policy *sandbox.Policy // with canonical paths

	// serve answers the calls that the command's filter leaves to a listener. It
	// is called once, before there is a command, if the filter leaves any.
	serve    func(listener int)
	listener int // 0: the filter leaves no call to it
	// drop takes the capabilities of init, once it needs them no more.
	drop func() error
}

// start confines T1, a thread of init, and forks the command from it. T1 has
// the command's Landlock domain, so the command could signal it. So T1 is a
// thread that ends afterwards. And it is not the main thread: the kernel judges
// a signal to init as a whole by the domain of that one.
func (t *target) start(s *supervisor) error {
	return onThreadOfItsOwn(func() error { return t.startHere(s) })
}

// onThreadOfItsOwn calls do on a thread that is not the main one, and that ends
// afterwards with all that do has put on it.
func onThreadOfItsOwn(do func() error) error {
	done := make(chan error, 1)
	var run func()
	run = func() {
		// A goroutine that does not unlock its thread ends the thread with
		// itself.
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// This is the main thread. While this goroutine holds it, another
			// one runs on another thread.
			other := make(chan struct{})
			go func() { defer close(other); run() }()
			<-other
			runtime.UnlockOSThread()
			return
		}
		done <- do()
	}
	go run()
	return <-done
}

// startHere confines the calling thread and forks the command from it.
func (t *target) startHere(s *supervisor) error {
	restoreOpenFiles()
	if err := t.confineHere(); err != nil {
		return err
	}
	if t.listener > 0 {
		// The new process makes calls that are left to the listener before it is
		// the command: its execve is one.
		t.serve(t.listener)
	}
	return s.bear(t.fork)
}

// confineHere drops the capabilities of init, enters the working directory of
// the command, and puts the layers on the calling thread: a command that is
// forked from this thread, or executed on it, is confined.
func (t *target) confineHere() error {
	if err := beStrict(); err != nil {
		return err
	}
	if t.config.Policy.Confined {
		if err := caps.Drop(); err != nil {
			return err
		}
	}
	// The capabilities are dropped first: with them this would also enter a
	// directory that the command could not enter.
	if t.config.connects() {
		return t.addLayers() // it needs no directory
	}
	if err := t.config.enterDir(); err != nil {
		return err
	}
	if err := t.judgeDir(); err != nil {
		return err
	}
	return t.addLayers()
}

// judgeDir refuses a working directory that the policy hides or denies, where
// there is no view: Landlock does not keep a process from entering a directory.
func (t *target) judgeDir() error {
	if t.config.Backend.Has(sandbox.MountNS) {
		return nil
	}
	dir, err := syscall.Getwd()
	if err == nil {
		switch access := t.policy.Access(dir); {
		case access == sandbox.Denied:
			err = syscall.EACCES
		case access == sandbox.Hidden && !t.policy.Leads(dir):
			err = syscall.ENOENT
		}
	}
	return t.config.explainDir(err)
}

// addLayers puts the layers of the backend on the calling thread. Filters come
// last, because a filter could forbid the calls that put the other layers on.
func (t *target) addLayers() error {
	l := t.config.Backend
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", os.NewSyscallError("prctl", err))
	}
	if l.Landlock > 0 {
		rules := t.policy.ProcessRuleset(l.Landlock, l.Has(sandbox.MountNS))
		switch {
		case !t.policy.Confined:
			rules = sandbox.NetworkRuleset(l.Landlock)
		case l.Has(sandbox.Supervised):
			rules = t.policy.SupervisedRuleset(l.Landlock, l.Level)
		}
		if err := enforce.RestrictThread(rules); err != nil {
			return err
		}
	}
	return t.addFilters()
}

// addFilters puts the filters on the calling thread, and keeps the listener of the last one.
func (t *target) addFilters() (err error) {
	filters, asked := enforce.FiltersFor(t.config.Backend, t.policy, t.config.Rules != nil)
	last := len(filters) - 1
	for _, f := range filters[:last] {
		if _, err := f.Load(enforce.NoListener); err != nil {
			return err
		}
	}
	t.listener, err = filters[last].Load(asked)
	return err
}

// fork starts the command as a child of the calling thread, whose layers it
// inherits.
func (t *target) fork() (pid int, err error) {
	c := t.config
	attr := &syscall.ProcAttr{
		Env:   c.Env,
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Setsid: c.NewSession, Setctty: c.NewSession && c.TTY},
	}
	err = withFewerFiles(func() error {
		return c.explain(c.search(func(path string) (err error) {
			pid, err = syscall.ForkExec(path, c.argv(), attr)
			return err
		}))
	})
	return pid, err
}

// becomeCommand executes a command whose files are not confined in the place of
// init. The command only gets a filter and a Landlock domain that restricts no
// file (sandbox.md 3), and nobody watches it.
func (c *config) becomeCommand() error {
	runtime.LockOSThread()
	if err := c.enterDir(); err != nil {
		return err
	}
	if c.TTY && c.NewSession {
		if err := unix.IoctlSetInt(0, unix.TIOCSCTTY, 0); err != nil {
			return fmt.Errorf("taking the terminal: %w", os.NewSyscallError("ioctl", err))
		}
	}
	t := &target{config: c, policy: c.Policy}
	if err := t.addLayers(); err != nil {
		return err
	}
	restoreOpenFiles()
	return withFewerFiles(c.exec)
}

// exec executes the command in the place of this process, with its limits.
func (c *config) exec() error {
	if c.Limits == (Limits{}) {
		return c.explain(c.search(func(path string) error {
			return syscall.Exec(path, c.argv(), c.Env)
		}))
	}
	var paths []string
	err := c.search(func(path string) error {
		paths = append(paths, path)
		return syscall.EACCES // so that search goes on with the next path
	})
	if len(paths) > 0 {
		err = c.Limits.execLimited(paths, c.argv(), c.Env)
	}
	return c.explain(err)
}

// search calls use with each path where the program may be, until one call succeeds. This process
// has to be in the working directory of the command, since elements of PATH may be relative.
func (c *config) search(use func(path string) error) error {
	return procs.Search(c.Argv[0], "", c.Env, use)
}

// argv returns the arguments that the program sees, its own name first.
func (c *config) argv() []string {
	if c.Arg0 == nil {
		return c.Argv
	}
	argv := slices.Clone(c.Argv)
	argv[0] = *c.Arg0
	return argv
}

// enterDir makes the working directory of the command that of this process.
func (c *config) enterDir() error { return c.explainDir(unix.Chdir(c.Dir)) }

// explainDir returns err with the working directory that could not be entered.
func (c *config) explainDir(err error) error {
	if err == nil {
		return nil
	}
	failed := &fs.PathError{Op: "chdir", Path: c.Dir, Err: err}
	if c.Policy.RestrictsNothing() { // there is no sandbox, and so no code of it
		return &notExecuted{code: ShellCode(syscall.EACCES), err: failed}
	}
	return fmt.Errorf("entering the working directory inside the sandbox: %w", failed)
}

// explain returns err with the program that could not be executed.
func (c *config) explain(err error) error {
	switch err {
	case nil:
		return nil
	case syscall.EAGAIN, syscall.ENOMEM:
		return fmt.Errorf("starting the command inside the sandbox: %w", os.NewSyscallError("fork", err))
	}
	failed := &notExecuted{code: setupFailed, err: &fs.PathError{Op: "exec", Path: c.Argv[0], Err: err}}
	if c.ShellCodes {
		failed.code = ShellCode(err)
	}
	return fmt.Errorf("starting the command inside the sandbox: %w", failed)
}
