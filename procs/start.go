package procs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
)

// Start starts a process. It returns once the program was executed; events wait
// for Begin. The caller must Close the process.
//
// Errors are ErrNoProgram, ErrNUL, *fs.PathError for the program (E2BIG for its
// arguments and environment) and for the directory, and *os.SyscallError for
// the rest; some are wrapped.
func Start(spec Spec) (*Process, error) {
	argv, env, err := spec.command()
	if err != nil {
		return nil, err
	}
	var path string
	var stage *Stage
	if spec.Stage == nil {
		path, err = LookPath(spec.Argv[0], spec.Dir, env)
		err = spec.explain(spec.Argv[0], err)
	} else {
		stage, err = spec.Stage(Program{Argv: spec.Argv, Arg0: spec.Arg0, Env: env, Dir: spec.Dir, TTY: spec.TTY})
	}
	if err != nil {
		return nil, err
	}
	shown := spec.Shown
	if shown == nil {
		shown = spec.Argv
	}
	p := &Process{
		argv:   clipArgv(shown),
		tty:    spec.TTY,
		sink:   spec.Sink,
		last:   spec.Last,
		begun:  make(chan struct{}),
		clock:  make(chan struct{}),
		ending: make(chan struct{}),
		done:   make(chan struct{}),
		log:    log{retain: spec.RetainBytes, budget: spec.Budget},
		free:   func() {},
	}
	if spec.Freed != nil {
		p.free = sync.OnceFunc(spec.Freed)
	}
	if p.log.retain <= 0 {
		// A client that comes back finds the head and the tail of both streams.
		p.log.retain = max(DefaultRetainBytes, 2*int64(spec.MaxOutput))
	}
	if err := p.launch(&spec, stage, path, argv, env); err != nil {
		stage.Close()
		return nil, err
	}
	stage.closeFiles()
	p.started = time.Now()
	p.open.Store(int32(len(p.streams)) + 1)
	if p.leash != nil {
		p.running.Go(func() { p.leash.deliver(p.group.signal) })
	}
	p.running.Go(p.wait)
	if spec.Timeout > 0 {
		p.running.Go(func() { p.limitTime(spec.Timeout, spec.Expired) })
	}
	return p, nil
}

// launch forks and executes path or, if there is one, the stage.
func (p *Process) launch(spec *Spec, stage *Stage, path string, argv, env []string) (err error) {
	var io stdio
	if spec.TTY {
		err = p.openPTY(&io, spec.Size)
	} else {
		err = p.openPipes(&io, spec.Stdin, spec.Bulk)
	}
	defer io.closeChild()
	if err != nil {
		io.closeOurs()
		return atStep("opening the command's input and output", err)
	}
	if err := spec.User.own(&io, spec.TTY || spec.Stdin); err != nil {
		io.closeOurs()
		return err
	}
	for _, s := range p.streams {
		s.bound = newBound(spec.MaxOutput, p.log.retain/2, p.log.hold)
	}
	p.leash = newLeash(stage)
	// A lingering stage is not guarded, because the guard would kill it before
	// it has killed everything that it started.
	if !p.leash.lingers() {
		p.guard = spec.Guard
	}
	if p.slot, err = p.guard.start(); err != nil {
		io.closeOurs()
		return err
	}
	attr := &syscall.ProcAttr{
		Dir:   spec.Dir,
		Env:   env,
		Files: io.child[:],
		Sys: &syscall.SysProcAttr{
			Setsid:  true,
			Setctty: spec.TTY && stage == nil,
			// The kernel sends this when the agent dies (rpc.md 1.5), or, more
			// exactly, when the forking thread dies. Go ends a thread only if a
			// goroutine returns while it is locked to the thread. So no
			// goroutine of the agent may return locked.
			Pdeathsig: syscall.SIGKILL,
		},
	}
	if p.leash.lingers() {
		attr.Sys.Pdeathsig = 0 // a lingering stage sees the agent's death by its leash
		spec.Reaper.adopt()    // its orphans, if the stage is killed
	}
	if spec.User != nil {
		attr.Sys.Credential = &syscall.Credential{Uid: spec.User.UID, Gid: spec.User.GID, Groups: spec.User.Groups}
	}
	if p.cgroup = spec.Cgroup; p.cgroup != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, p.cgroup.fd()
	}
	if stage == nil {
		p.group, err = newGroup(spec.Reaper, path, argv, attr)
		err = spec.explain(path, err)
	} else {
		p.group, err = newStage(spec.Reaper, stage, attr)
	}
	if err != nil {
		io.closeOurs()
		p.guard.remove(p.slot)
		return spec.User.explain(err)
	}
	p.cgroup.entered()
	p.guard.add(p.slot, p.group.pid)
	return nil
}

// own gives the pipes or the terminal of the child to the user, who can then open them again, as by
// /dev/stdout. input says that descriptor 0 is one of them. It does nothing for nil.
func (u *User) own(io *stdio, input bool) error {
	if u == nil {
		return nil
	}
	for n, fd := range io.child {
		if n > 0 || input {
			if err := unix.Fchown(int(fd), int(u.UID), -1); err != nil {
				return u.explain(os.NewSyscallError("fchown", err))
			}
		}
	}
	return nil
}

// explain says which step has failed, if it was not the program: this process may lack a privilege, or be in
// a user namespace that has no such ids.
func (u *User) explain(err error) error {
	if u != nil && (errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EINVAL)) {
		return atStep(fmt.Sprintf("becoming the user %d with the group %d", u.UID, u.GID), err)
	}
	return err
}

// checkDir returns EACCES if the user, who is not the one of this process, may not enter a directory. It looks only
// at the permission bits, because an error is explained and nothing is decided. It may be called on nil.
func (u *User) checkDir(dir string) error {
	if u == nil || u.UID == 0 {
		return nil
	}
	at, err := filepath.EvalSymlinks(dir)
	for err == nil {
		var st unix.Stat_t
		if err = unix.Stat(at, &st); err != nil {
			break
		}
		search := st.Mode & 0o1
		switch {
		case st.Uid == u.UID:
			search = st.Mode & 0o100
		case st.Gid == u.GID || slices.Contains(u.Groups, st.Gid):
			search = st.Mode & 0o10
		}
		if search == 0 {
			return syscall.EACCES
		}
		if at == "/" {
			return nil
		}
		at = filepath.Dir(at)
	}
	return nil // the program is the more likely reason
}

// maxBusy is the longest single wait for a program that is open for writing.
const maxBusy = 256 * time.Millisecond

// newGroup forks and executes path as the leader of a new session.
//
// A program that was just written may be busy: a child forked in between has
// the file open until it executes something itself. So newGroup tries again,
// for half a second in total.
func newGroup(reaper *Reaper, path string, argv []string, attr *syscall.ProcAttr) (*group, error) {
	fd := -1
	attr.Sys.PidFD = &fd
	begin := linux.Fork
	if attr.Sys.Credential != nil {
		begin = linux.ForkApart
	}
	fork := func() (int, error) {
		return begin(func() (int, error) { return syscall.ForkExec(path, argv, attr) })
	}
	pid, err := reaper.Fork(fork)
	if err == syscall.EINVAL {
		// Perhaps the kernel does not know CLONE_PIDFD: try without.
		attr.Sys.PidFD = nil
		pid, err = reaper.Fork(fork)
	}
	for wait := time.Millisecond; err == syscall.ETXTBSY && wait <= maxBusy; wait *= 2 {
		time.Sleep(wait)
		pid, err = reaper.Fork(fork)
	}
	if err != nil {
		return nil, err
	}
	g := &group{pid: pid, reaper: reaper}
	if fd >= 0 { // an old kernel may ignore the flag and leave fd as it is
		// NewFile puts a non-blocking file into the poller, so that waiting for
		// the child takes no thread. If SetNonblock fails, waiting takes one.
		_ = syscall.SetNonblock(fd, true)
		g.pidfd = os.NewFile(uintptr(fd), "pidfd")
	}
	return g, nil
}

// command checks the spec and returns the argv and environment for the program.
func (s *Spec) command() (argv, env []string, err error) {
	if len(s.Argv) == 0 {
		return nil, nil, ErrNoProgram
	}
	argv, env = s.Argv, s.Env
	if s.Arg0 != nil {
		argv = slices.Clone(argv)
		argv[0] = *s.Arg0
	}
	if strings.Contains(s.Argv[0], "\x00") {
		return nil, nil, fmt.Errorf("argv[0] %w", ErrNUL)
	}
	for i, arg := range argv {
		if strings.Contains(arg, "\x00") {
			return nil, nil, fmt.Errorf("argv[%d] %w", i, ErrNUL)
		}
	}
	for _, kv := range env {
		if strings.Contains(kv, "\x00") {
			name, _, _ := strings.Cut(kv, "=") // a value may be a secret
			return nil, nil, fmt.Errorf("environment variable %q %w", name, ErrNUL)
		}
	}
	switch {
	case strings.Contains(s.Dir, "\x00"):
		return nil, nil, fmt.Errorf("working directory %q %w", s.Dir, ErrNUL)
	case !filepath.IsAbs(s.Dir):
		return nil, nil, fmt.Errorf("working directory %q is not absolute", s.Dir)
	}
	if s.TTY && s.LoginShell != "" && !hasEnv(env, "SHELL") {
		env = append(slices.Clip(env), "SHELL="+s.LoginShell)
	}
	if tooLong(argv, env) {
		return nil, nil, s.explain(s.Argv[0], syscall.E2BIG)
	}
	return argv, env, nil
}

// ownProgram is the path by which this program starts itself as a tool.
const ownProgram = "/proc/self/exe"

// explain finds out whether err is about the directory or the program. The
// kernel does not say, and the child enters the directory first.
func (s *Spec) explain(path string, err error) error {
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return err
	}
	if errno == syscall.EAGAIN || errno == syscall.ENOMEM {
		return os.NewSyscallError("fork", errno)
	}
	if path == ownProgram {
		return atStep("starting "+path+" as a tool", errno)
	}
	derr := linux.CheckDir(s.Dir)
	if derr == nil && errno == syscall.EACCES {
		derr = s.User.checkDir(s.Dir)
	}
	if derr != nil {
		return &fs.PathError{Op: "chdir", Path: s.Dir, Err: derr}
	}
	return &fs.PathError{Op: "exec", Path: path, Err: errno}
}

// Check returns the error of the program or the directory that [Start] would return without a
// Stage, because a Stage finds such an error only when it runs.
func (s *Spec) Check() error {
	if len(s.Argv) == 0 {
		return ErrNoProgram
	}
	path, err := LookPath(s.Argv[0], s.Dir, s.Env)
	if err == nil {
		full := path
		if !filepath.IsAbs(full) {
			full = s.Dir + "/" + full
		}
		err = executable(full)
	}
	if err == nil {
		err = linux.CheckDir(s.Dir)
	}
	return s.explain(cmp.Or(path, s.Argv[0]), err)
}

func hasEnv(env []string, name string) bool {
	return slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
}

// stdio has the descriptors that a start opens, for the parent and for the child.
type stdio struct {
	child     [3]uintptr // descriptors for 0, 1 and 2
	childFDs  []int      // to close once the child has them
	childFile *os.File   // the tty, to close once the child has it
	ours      []*os.File // to close if the child does not start
}

func (io *stdio) closeChild() {
	for _, fd := range io.childFDs {
		_ = syscall.Close(fd)
	}
	if io.childFile != nil {
		_ = io.childFile.Close()
	}
}

func (io *stdio) closeOurs() {
	for _, f := range io.ours {
		_ = f.Close()
	}
}

// openPipes makes two pipes for output, and one for stdin if wanted.
func (p *Process) openPipes(io *stdio, wantStdin, bulk bool) error {
	for i, name := range []Stream{Stdout, Stderr} {
		file, err := io.pipe(i+1, name.String())
		if err != nil {
			return err
		}
		s, err := newStream(name, file)
		if err != nil {
			return err
		}
		s.bulk = bulk
		p.streams = append(p.streams, s)
	}
	if wantStdin {
		file, err := io.pipe(0, "stdin")
		if err != nil {
			return err
		}
		p.stdin, err = newStdin(file, false, &p.running)
		return err
	}
	null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: os.DevNull, Err: err}
	}
	io.childFDs = append(io.childFDs, null)
	io.child[0] = uintptr(null)
	return nil
}

// pipe makes the pipe for descriptor n of the child and returns our end of it.
func (io *stdio) pipe(n int, name string) (*os.File, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	ours, child := ends[0], ends[1]
	if n == 0 {
		ours, child = child, ours
	}
	io.childFDs = append(io.childFDs, child)
	io.child[n] = uintptr(child)
	// Our end is non-blocking, so that NewFile adds it to the poller. The child
	// expects a blocking one.
	err := syscall.SetNonblock(ours, true)
	file := os.NewFile(uintptr(ours), name)
	io.ours = append(io.ours, file)
	return file, os.NewSyscallError("fcntl", err)
}

// openPTY makes a terminal, which is stdin, stdout and stderr of the child.
func (p *Process) openPTY(io *stdio, size Winsize) error {
	ptmx, tty, err := pty.Open()
	if err != nil {
		return fmt.Errorf("opening a pty: %w", err)
	}
	io.childFile = tty
	io.ours = append(io.ours, ptmx)
	// Fd makes the tty blocking, as the child expects it.
	io.child = [3]uintptr{tty.Fd(), tty.Fd(), tty.Fd()}

	s, err := newStream(PTY, ptmx)
	if err != nil {
		return err
	}
	// pty.Open leaves the ptmx blocking, though the poller knows it.
	if err := s.setNonblock(); err != nil {
		return err
	}
	// Backspace removes a whole character. Terminals use UTF-8, and a client cannot say otherwise.
	if mode, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS); err == nil {
		mode.Iflag |= unix.IUTF8
		_ = unix.IoctlSetTermios(int(tty.Fd()), unix.TCSETS, mode) // only the editing of lines differs
	}
	size = Winsize{Rows: cmp.Or(size.Rows, 24), Cols: cmp.Or(size.Cols, 80)} // rpc.md 4.5
	if err := s.resize(size); err != nil {
		return err
	}
	p.streams = []*stream{s}
	p.stdin, err = newStdin(ptmx, true, &p.running)
	return err
}

func (s *stream) setNonblock() (err error) {
	// Control does not fail: the file is open.
	_ = s.raw.Control(func(fd uintptr) { err = syscall.SetNonblock(int(fd), true) })
	return os.NewSyscallError("fcntl", err)
}

// CloseOnExec marks every open descriptor except 0, 1 and 2, so that no child
// inherits a descriptor that the agent inherited (rpc.md 4.5). Call it once,
// first in main: Go marks the descriptors that it opens later.
func CloseOnExec() error {
	err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err != unix.ENOSYS && err != unix.EINVAL {
		return os.NewSyscallError("close_range", err)
	}
	// Before Linux 5.11.
	entries, err := os.ReadDir("/proc/self/fd")
	for _, entry := range entries {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
	return err
}
