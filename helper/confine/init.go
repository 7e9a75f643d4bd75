package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/helper/supervise"
	"github.com/execagent/execagent/internal/pack"
	"github.com/execagent/execagent/internal/userns"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/sandbox/resolve"
	"github.com/execagent/execagent/sandbox/view"
)

const (
	// setupFailed is the exit code of an init that has not run the command, or
	// has ended it because its view had changed (sandbox.md 9.2).
	setupFailed = 101
	// killed is the exit code of an init whose leash was let go: 128 and
	// SIGKILL.
	killed = 128 + int(unix.SIGKILL)

	configFD, leashFD = 3, 4 // the description of the command, and init's end of the leash

	// maxLine bounds the line that says why the command is not run, in bytes. A
	// path in an error can have 4096.
	maxLine = 1 << 10

	// memoryLimit is how many bytes of memory init uses before it collects
	// garbage after all.
	memoryLimit = 32 << 20
)

// Main runs the command that the agent has described on descriptor 3, and
// returns its exit code, or 128 and the signal that ended it. If the command
// cannot be run Main says why on stderr and returns 101, or what ShellCodes asks
// for. It is for a process of its own, which [Command.Prepare] describes.
func Main() int {
	// A collection before the command's first program runs would not end: the thread that
	// forks waits for the supervisor's answer, and the collection for that thread
	// (execcheck.md 4). Nearly every init allocates so little that none pays later.
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(memoryLimit)
	debug.SetTraceback("crash") // an init without memory ends by SIGABRT, not with a code that could be the command's
	code, err := initMain()
	if err != nil {
		line := strings.ReplaceAll(err.Error(), "\n", ": ")
		if len(line) > maxLine {
			line = line[:maxLine/2] + " ... " + line[len(line)-maxLine/2:]
		}
		_, _ = fmt.Fprintf(os.Stderr, "sandbox: %s\n", line) // the code says it too
		if failed, ok := errors.AsType[*notExecuted](err); ok {
			return failed.code
		}
		return setupFailed
	}
	return code
}

// initMain goes through the steps in their order. Each relies on those before
// it, and on failure none of those after it is done.
func initMain() (code int, err error) {
	if supervise.IsBind(os.Args) {
		return 0, supervise.BindMain(os.Args)
	}
	if err := closeOnExec(); err != nil {
		return 0, err
	}
	if err := refusalIn(os.Args); err != nil {
		return 0, err
	}
	cfg, err := readConfig()
	if err != nil {
		return 0, err
	}
	if len(os.Args) == 3 { // the kernel's refusal of the namespaces, see procs.Stage
		return 0, fmt.Errorf("creating namespaces: %s", os.Args[2])
	}
	if !cfg.Policy.Confined && cfg.connects() {
		return 0, cfg.pass(onThreadOfItsOwn(cfg.connectNetworkOnly))
	}
	if !cfg.Policy.Confined && cfg.Rules == nil {
		return 0, cfg.becomeCommand()
	}
	if isApart(os.Args) {
		return 0, cfg.becomeApart()
	}
	if err := cfg.enter(); err != nil {
		return 0, err
	}
	if err := cfg.openGate(); err != nil {
		return 0, fmt.Errorf("making the listeners of the proxy: %w", err)
	}
	s, err := newSupervisor(cfg)
	if err != nil {
		return 0, err
	}
	resolved, err := cfg.resolve()
	if err != nil {
		return 0, err
	}
	defer resolved.Close()
	watch, err := newMountWatch(cfg.Backend, resolved)
	if err != nil {
		return 0, err
	}
	t := &target{config: cfg, policy: resolved.Policy}
	var start func(*supervisor) error
	switch {
	case cfg.isOuter():
		start = t.startInner
	case cfg.Limits != (Limits{}) && !cfg.connects():
		start = func(s *supervisor) error { return t.startApart(s, watch) }
	default:
		made, err := cfg.enterView(resolved)
		if err == nil {
			err = watch.record(made)
		}
		if err != nil {
			return 0, err
		}
		start = t.start
		if cfg.connects() {
			start = t.startConnecting
		}
	}
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, &fs.PathError{Op: "open", Path: os.DevNull, Err: err}
	}
	rules, err := cfg.judge()
	if err != nil {
		return 0, err
	}
	n, err := supervise.New(supervise.Config{
		Judge:  rules,
		Policy: t.policy, Level: cfg.Backend.Level, Shm: cfg.Shm, Ports: cfg.AgentPorts, Proxy: cfg.teller(), Self: []string{cfg.Argv0, Arg},
		Executed: hideMemory,
	})
	if err == nil {
		s.calls = n
		t.serve = func(listener int) { go n.Serve(listener) }
		err = start(s)
	}
	if err == nil {
		err = watch.begin(s)
	}
	if err != nil {
		if _, ok := errors.AsType[*notExecuted](err); ok {
			s.finish()
		}
		s.killRest()
		return 0, err
	}
	if cfg.connects() && !cfg.isOuter() {
		s.finish()
		return 0, nil
	}
	letGo(null)
	return s.attend()
}

// closeOnExec keeps the command from inheriting more than descriptors 0 to 2.
// The agent passes no others but the two of init. If one came in all the same,
// this keeps it in init.
func closeOnExec() error {
	err := unix.CloseRange(configFD, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err == unix.ENOSYS || err == unix.EINVAL { // before Linux 5.11
		unix.CloseOnExec(configFD)
		unix.CloseOnExec(leashFD)
		return nil
	}
	return os.NewSyscallError("close_range", err)
}

// letGo replaces init's descriptors 0 to 2 by null, which it takes over. When
// the command closes a pipe the other end has to see that, although init lives
// on. It also closes the description of the command, and leaves the working
// directory.
func letGo(null int) {
	for fd := range 3 {
		_ = unix.Dup3(null, fd, 0) // both exist
	}
	unix.Close(null)
	unix.Close(configFD)
	_ = unix.Chdir("/") // init does nothing in its directory, and would keep its file system busy
}

// readConfig reads the command from its descriptor, which stays open.
func readConfig() (*config, error) {
	encoded, err := pack.ReadFile(configFD, maxConfig)
	if err != nil {
		return nil, fmt.Errorf("reading the command: %w", err)
	}
	c, err := decodeConfig(encoded)
	if err != nil {
		return nil, err
	}
	return c, c.check()
}

// enter maps the ids of this process in its new user namespace, keeps others
// out of its memory, and makes sure that it can kill all that it will start.
func (c *config) enter() error {
	if c.Backend.Has(sandbox.UserNS) {
		// The ids come first. Once the process is not dumpable its files in
		// /proc belong to root, and it could not write the maps.
		if err := userns.MapIDs(c.UID, c.GID); err != nil {
			return err
		}
	}
	// T1 will be in the command's Landlock domain for a moment, and the command
	// has the same uid as init, even if that is 0. So neither of these keeps
	// the command from tracing T1 and reading the memory of init. This does.
	//
	// Where init traces the command around its execve, it does so around the first
	// one too. The process that calls that is a copy of init which shares its
	// memory, so it could not be traced: init hides its memory when the kernel has
	// loaded the command, before that runs.
	if c.Backend.Level < sandbox.LevelReads && c.Rules == nil || c.isOuter() {
		if err := hideMemory(); err != nil {
			return err
		}
	}
	if c.Backend.Has(sandbox.PIDNS) {
		if pid := os.Getpid(); pid != 1 {
			return fmt.Errorf("creating a pid namespace: this is process %d of it", pid)
		}
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming a subreaper: %w", os.NewSyscallError("prctl", err))
	}
	if _, err := os.ReadFile("/proc/thread-self/children"); err != nil {
		return fmt.Errorf("listing children, to kill them, without a pid namespace: %w", err)
	}
	return mark()
}

// hideMemory keeps other processes of the same user from tracing this one, and
// from reading its memory.
func hideMemory() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("hiding the memory of init: %w", os.NewSyscallError("prctl", err))
	}
	return nil
}

// showMemory lets the first init trace this process. The kernel hides the memory of a program
// that has more capabilities than the one before it, as the second init has where the uid is 0 in
// a user namespace.
func showMemory() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("showing the memory of the second init: %w", os.NewSyscallError("prctl", err))
	}
	return nil
}

// resolve looks the paths of the policy up. They have to lead where they led
// when the agent decided that the command may be started.
func (c *config) resolve() (*resolve.Resolved, error) {
	resolved, err := resolve.Policy(c.Policy)
	if err != nil {
		return nil, fmt.Errorf("resolving the policy: %w", err)
	}
	granted := resolved.Granted()
	if c.Granted == nil || slices.Equal(c.Granted, granted) {
		return resolved, nil
	}
	resolved.Close()
	for _, path := range append(slices.Clone(c.Granted), granted...) {
		if !slices.Contains(c.Granted, path) || !slices.Contains(granted, path) {
			return nil, fmt.Errorf("resolving the policy: %s is not what it was when the command was asked for", path)
		}
	}
	return nil, errors.New("resolving the policy: its paths are not what they were when the command was asked for")
}

// enterView makes the policy's view the root of this process, if the backend
// has views, and returns the mounts that it depends on.
func (c *config) enterView(resolved *resolve.Resolved) ([]view.Mounted, error) {
	if !c.Backend.Has(sandbox.MountNS) {
		return nil, nil
	}
	stdio, err := takeStdio(resolved.Policy)
	if err != nil {
		return nil, err
	}
	defer stdio.close()
	options := view.Options{FreshProc: c.Backend.Has(sandbox.Procfs), Terminal: stdio.terminal, Sockets: c.Sockets}
	made, err := view.Enter(resolved, options)
	if err != nil {
		return nil, fmt.Errorf("building the view: %w", err)
	}
	return made, stdio.replace()
}
