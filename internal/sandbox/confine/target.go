package confine

import (
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/internal/sandbox/enforce"
	"github.com/execagent/execagent/internal/sandbox/gate"
	"github.com/execagent/execagent/internal/sandbox/resolve"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/sandbox"
)

// target starts the command of an init.
type target struct {
	config   *config
	policy   *sandbox.Policy // with canonical paths
	listener int             // of the command's filter; 0: the filter has none

	// The fields below are set by prepare.
	role       role
	supervisor *supervisor
	resolved   *resolve.Resolved // open until this process ends
	watch      *mountWatch       // nil: the backend has no views
	folders    map[string]int    // of sockets that the policy names; nil: there is no view
	holder     *gate.Holder      // nil: no connections are held

	// drop drops the capabilities of init, when init no longer needs them.
	drop func() error
}

// serve starts to answer the calls that the command's filter leaves to the listener. It is called
// before there is a command, if there is a listener.
func (t *target) serve() { go t.supervisor.calls.Serve(t.listener) }

// start confines T1, a thread of init, and forks the command from it. T1 has
// the command's Landlock domain, so the command could signal T1. Therefore T1
// ends afterwards. It is not the main thread either, because the kernel uses the
// domain of the main thread to judge a signal to init as a whole.
func (t *target) start() error { return onThreadOfItsOwn(t.startHere) }

// onThreadOfItsOwn calls do on a thread that is not the main one. The thread ends
// afterwards, and with it every restriction that do has put on it.
func onThreadOfItsOwn(do func() error) error {
	done := make(chan error, 1)
	var run func()
	run = func() {
		// When a goroutine ends that has not unlocked its thread, the thread ends
		// too.
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// This is the main thread. While this goroutine holds it, another
			// goroutine has to run on another thread.
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
func (t *target) startHere() error {
	restoreOpenFiles()
	if err := t.confineHere(); err != nil {
		return err
	}
	if t.listener > 0 {
		// The new process needs answers before it is the command, because its
		// execve may be one of the calls that are left to the listener.
		t.serve()
	}
	return t.supervisor.bear(t.fork)
}

// confineHere drops the capabilities of init, enters the working directory of
// the command, and puts the layers on the calling thread, so that a command that is
// forked from this thread, or executed on it, is confined.
func (t *target) confineHere() error {
	if err := beStrict(); err != nil {
		return err
	}
	if t.config.Policy.Confined {
		if err := linux.DropCaps(); err != nil {
			return err
		}
	}
	// The capabilities are dropped first: with them init could enter a
	// directory that the command may not enter.
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

// judgeDir refuses a working directory that the policy hides or denies. It is needed where
// there is no view, because Landlock does not keep a process from entering a directory.
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

// becomeCommand replaces init by a command whose files are not confined. The command
// gets only a filter and a Landlock domain that restricts no
// files (sandbox.md 3), and no process watches it.
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

// exec replaces this process by the command, with its limits.
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

// search calls use with each path where the program may be, until a call succeeds. This process
// has to be in the working directory of the command, because elements of PATH may be relative.
func (c *config) search(use func(path string) error) error {
	return procs.Search(c.Argv[0], "", c.Env, use)
}

// argv returns the arguments of the program, its argv[0] first.
func (c *config) argv() []string {
	if c.Arg0 == nil {
		return c.Argv
	}
	argv := slices.Clone(c.Argv)
	argv[0] = *c.Arg0
	return argv
}

// enterDir makes the command's working directory the one of this process.
func (c *config) enterDir() error { return c.explainDir(unix.Chdir(c.Dir)) }

// explainDir adds the working directory to err, the error of entering it.
func (c *config) explainDir(err error) error {
	if err == nil {
		return nil
	}
	failed := &fs.PathError{Op: "chdir", Path: c.Dir, Err: err}
	if c.Policy.RestrictsNothing() { // without a sandbox there is no exit code of the sandbox
		return &notExecuted{code: ShellCode(syscall.EACCES), err: failed}
	}
	return fmt.Errorf("entering the working directory inside the sandbox: %w", failed)
}

// explain adds the program to err, the error of executing it.
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
