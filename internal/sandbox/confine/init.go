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

	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/internal/pack"
	"github.com/execagent/execagent/internal/sandbox/resolve"
	"github.com/execagent/execagent/internal/sandbox/supervise"
	"github.com/execagent/execagent/internal/sandbox/view"
	"github.com/execagent/execagent/sandbox"
)

const (
	// setupFailed is the exit code of an init that has not run the command, or that
	// has ended the command because its view had changed (sandbox.md 9.2).
	setupFailed = 101
	// killed is the exit code of an init whose leash was closed: 128 and SIGKILL.
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
// returns the command's exit code, or 128 and the signal that ended it. If the command
// cannot be run, Main writes one line with the reason to stderr and returns 101, or the code
// that ShellCodes asks for. Main needs a process of its own; [Command.Prepare] describes it.
func Main() int {
	// A collection before the command's first program runs would not end: the thread that
	// forks waits for the supervisor's answer, and the collection waits for that thread
	// (execcheck.md 4). Nearly every init allocates so little that it never needs one.
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(memoryLimit)
	debug.SetTraceback("crash") // an init without memory ends by SIGABRT, not with a code that could be the command's
	code, err := initMain()
	if err != nil {
		line := strings.ReplaceAll(err.Error(), "\n", ": ")
		if len(line) > maxLine {
			line = line[:maxLine/2] + " ... " + line[len(line)-maxLine/2:]
		}
		_, _ = fmt.Fprintf(os.Stderr, "sandbox: %s\n", line) // the exit code reports the failure too
		if failed, ok := errors.AsType[*notExecuted](err); ok {
			return failed.code
		}
		return setupFailed
	}
	return code
}

// initMain finds out the role of this process and plays it. Each step of a role relies on the
// steps before it, and after a failure no further step is done.
func initMain() (code int, err error) {
	r, c, err := decideRole(os.Args, openConfig)
	if err != nil {
		return 0, err
	}
	switch r {
	case roleBind:
		return 0, supervise.BindMain(os.Args)
	case roleConnectOnly:
		return 0, c.connectOnly()
	case roleBecome:
		return 0, c.becomeCommand()
	case roleApart:
		return 0, c.becomeApart()
	case roleOuter:
		return c.run(r, (*target).startInner)
	case roleConnect:
		return 0, c.connect()
	case roleLimited:
		return c.run(r, (*target).startApart)
	default:
		return c.run(r, (*target).start)
	}
}

// openConfig makes sure that the command inherits no descriptors of this process, and reads the
// config. The error may also be a reason, in args, why no command is run.
func openConfig(args []string) (*config, error) {
	if err := closeOnExec(); err != nil {
		return nil, err
	}
	if err := refusalIn(args); err != nil {
		return nil, err
	}
	c, err := readConfig()
	if err != nil {
		return nil, err
	}
	if len(args) == 3 { // the kernel has refused the namespaces, see procs.Stage
		return nil, fmt.Errorf("creating namespaces: %s", args[2])
	}
	return c, nil
}

// closeOnExec keeps the command from inheriting more than descriptors 0 to 2.
// The agent passes only the two descriptors of init. If init inherited another
// one anyway, the command does not get it.
func closeOnExec() error {
	err := unix.CloseRange(configFD, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err == unix.ENOSYS || err == unix.EINVAL { // before Linux 5.11
		unix.CloseOnExec(configFD)
		unix.CloseOnExec(leashFD)
		return nil
	}
	return os.NewSyscallError("close_range", err)
}

// readConfig reads the config from its descriptor, which stays open, and checks it.
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

// run starts the command with start, and looks after it until it has ended.
func (c *config) run(r role, start func(*target) error) (code int, err error) {
	t, err := c.prepare(r)
	if err != nil {
		return 0, err
	}
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, &fs.PathError{Op: "open", Path: os.DevNull, Err: err}
	}
	if err := t.launch(start); err != nil {
		return 0, err
	}
	letGo(null)
	return t.supervisor.attend()
}

// prepare does what an init has to do before it may start anything. It also enters the view,
// unless the init only starts another one, which does that.
func (c *config) prepare(r role) (*target, error) {
	if err := c.enter(r); err != nil {
		return nil, err
	}
	if err := c.openGate(); err != nil {
		return nil, fmt.Errorf("making the listeners of the proxy: %w", err)
	}
	holder, err := c.openHolder(r)
	if err != nil {
		return nil, fmt.Errorf("making connections transparent: %w", err)
	}
	s, err := newSupervisor(c, r)
	if err != nil {
		return nil, err
	}
	resolved, err := c.resolve()
	if err != nil {
		return nil, err
	}
	watch, err := newMountWatch(c.Backend, resolved)
	if err != nil {
		return nil, err
	}
	t := &target{config: c, role: r, supervisor: s, resolved: resolved, policy: resolved.Policy, watch: watch, holder: holder}
	if r == roleOuter || r == roleLimited {
		return t, nil
	}
	if c.Backend.Has(sandbox.MountNS) {
		if t.folders, err = supervise.Folders(t.policy.Sockets); err != nil {
			return nil, fmt.Errorf("opening the folders of sockets: %w", err)
		}
	}
	made, err := c.enterView(resolved)
	if err != nil {
		return nil, err
	}
	return t, watch.record(made)
}

// launch calls start, once the calls of the command can be answered, and then watches the
// mounts of the view. On failure it kills the process that start started.
func (t *target) launch(start func(*target) error) error {
	c, s := t.config, t.supervisor
	rules, err := t.judge()
	if err != nil {
		return err
	}
	s.calls, err = supervise.New(supervise.Config{
		Judge:  rules,
		Policy: t.policy, Level: c.Backend.Level, Shm: c.Shm, Ports: c.AgentPorts, Folders: t.folders, Proxy: c.teller(), Holder: t.holder, Self: []string{c.Argv0, Arg},
		Executed: hideMemory, Refused: t.refusals(), Changes: t.changes(),
	})
	if err == nil && t.holder != nil {
		go t.holder.Serve()
	}
	if err == nil {
		err = start(t)
	}
	if err == nil {
		err = t.watch.begin(s)
	}
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*notExecuted](err); ok {
		s.finish()
	}
	s.killRest()
	return err
}

// letGo replaces init's descriptors 0 to 2 by null, which it closes. When
// the command closes a pipe, the other end has to notice that, although init lives
// on. letGo also closes the description of the command, and leaves the working
// directory.
func letGo(null int) {
	for fd := range 3 {
		_ = unix.Dup3(null, fd, 0) // both exist
	}
	unix.Close(null)
	unix.Close(configFD)
	_ = unix.Chdir("/") // init does nothing in its directory, and would keep its file system busy
}

// enter maps the ids of this process in its new user namespace, keeps others
// out of its memory, and makes sure that it can kill everything that it will start.
func (c *config) enter(r role) error {
	if c.Backend.Has(sandbox.UserNS) {
		// The ids come first: once the process is not dumpable, its files in
		// /proc belong to root, and it could not write the maps.
		if err := linux.MapIDs(c.UID, c.GID); err != nil {
			return err
		}
	}
	// T1 will be in the command's Landlock domain for a moment, and the command
	// has the same uid as init, even if that is 0. So neither the domain nor the
	// uid keeps the command from tracing T1 and reading the memory of init; only
	// hideMemory does.
	//
	// An init that traces the command around every execve traces it around the first
	// one too. The process that makes this call is a copy of init and shares its
	// memory, and if the memory were hidden it could not be traced. So such an init
	// hides its memory later: when the kernel has loaded the command, before that runs.
	if c.Backend.Level < sandbox.LevelReads && c.Rules == nil || r == roleOuter {
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

// showMemory lets the first init trace this process, the second one. The kernel hides the memory
// of a process that executes a program and gains capabilities by it, as the second init does
// where the uid is 0 in a user namespace.
func showMemory() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("showing the memory of the second init: %w", os.NewSyscallError("prctl", err))
	}
	return nil
}

// resolve looks up the paths of the policy. They have to lead where they led
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
// has views, and returns the mounts that the view depends on.
func (c *config) enterView(resolved *resolve.Resolved) ([]view.Mounted, error) {
	if !c.Backend.Has(sandbox.MountNS) {
		return nil, nil
	}
	stdio, err := takeStdio(resolved.Policy)
	if err != nil {
		return nil, err
	}
	defer stdio.close()
	options := view.Options{FreshProc: c.Backend.Has(sandbox.Procfs), Terminal: stdio.terminal, Sockets: c.Sockets, Resolver: c.Policy.Transparent}
	made, err := view.Enter(resolved, options)
	if err != nil {
		return nil, fmt.Errorf("building the view: %w", err)
	}
	return made, stdio.replace()
}
