package execcheck

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/internal/linux/usernotify"
)

// maxWindows bounds the windows that are open for one command at the same time:
// each takes a thread. Further calls wait.
const maxWindows = 64

// Config configures a [Checker].
type Config struct {
	// Find finds the program that a call names: path begins at the caller's
	// descriptor dir, or with AT_FDCWD at its working directory, and flags are the
	// flags of execveat(2). It returns an O_PATH descriptor, which the checker
	// closes, and the canonical path; or the errno of the call. It refuses files
	// that the command may not execute, because Decide does not judge single files.
	// It is called for the program, each interpreter and the loader, by several
	// workers at once.
	Find func(call *usernotify.Call, dir int, path string, flags int) (fd int, canonical string, err error)
	// Decide returns the reason why an image may not run, or nil; the call fails
	// with the error's errno, or EPERM if it has none. It is called on one of
	// maxWindows workers, so maxWindows slow decisions delay every further execve
	// of the command. Close waits for it, and it does not learn that the caller was
	// killed. For an image with Real it is called while the thread is stopped, and
	// must return at once.
	Decide func(Image) error
	// First is called once, when the first image has been verified, before its
	// first instruction. Until then the process that calls execve may share the
	// memory of this process, which must therefore be traceable
	// (PR_SET_DUMPABLE). After an error that image is killed. It may be nil.
	First func() error
}

// Checker checks every execve of one command.
type Checker struct {
	config Config
	jobs   chan job // for a worker that waits for one
	stop   chan struct{}
	done   sync.WaitGroup
	first  sync.Once

	mu      sync.Mutex
	workers int
	windows map[int]chan struct{} // closed with the window, by the thread and by its process
	reaped  map[int]chan struct{} // closed when the child is reaped
}

// New returns a checker. The caller closes it.
func New(c Config) *Checker {
	return &Checker{config: c, jobs: make(chan job), stop: make(chan struct{}), windows: map[int]chan struct{}{}, reaped: map[int]chan struct{}{}}
}

// Close ends the workers, once their windows are closed. The listener is closed
// by then, so no call waits for an answer any more.
func (c *Checker) Close() {
	close(c.stop)
	c.done.Wait()
}

// job is one call of execve or execveat, which came to listener.
type job struct {
	listener int
	call     usernotify.Call
}

// Check answers a call of execve or execveat that came to listener. It returns at
// once.
func (c *Checker) Check(listener int, call usernotify.Call) {
	j := job{listener: listener, call: call}
	select {
	case c.jobs <- j: // to a waiting worker
		return
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.workers < maxWindows {
		c.workers++
		c.done.Go(func() { c.work(j) })
		return
	}
	c.done.Go(func() {
		select {
		case c.jobs <- j:
		case <-c.stop:
		}
	})
}

// work is a worker: a separate thread, which never forks, so that it waits only
// for the thread that it traces. No signal may interrupt it. It is not the main
// thread, because the kernel gives orphans to the main thread as children.
func (c *Checker) work(j job) {
	runtime.LockOSThread() // unlocked on the main thread only; another one ends with this func
	if unix.Gettid() == os.Getpid() {
		// While this goroutine holds the main thread another one runs elsewhere.
		var other sync.WaitGroup
		other.Go(func() { c.work(j) })
		other.Wait()
		runtime.UnlockOSThread()
		return
	}
	usernotify.Undisturbed(func() {
		for {
			c.check(&j)
			select {
			case j = <-c.jobs:
			case <-c.stop:
				return
			}
		}
	})
}

// check answers one call.
func (c *Checker) check(j *job) {
	want, opened, err := c.judge(&j.call)
	defer func() {
		for _, fd := range opened {
			unix.Close(fd)
		}
	}()
	if err != nil {
		j.refuse(err)
		return
	}
	w := window{Checker: c, job: j, leader: want.process, child: want.parent == os.Getpid(), want: want}
	w.open()
	defer w.close()
	w.run()
}

// refuse ends a call with the errno of err.
func (j *job) refuse(err error) {
	errno, ok := errors.AsType[unix.Errno](err)
	if !ok {
		errno = unix.EPERM
	}
	usernotify.Respond(j.listener, j.call.ID, errno)
}

// judge reads the call, finds the program and its interpreters, and decides. The
// files stay open until the call is answered. The order is the kernel's, so that a
// call with two errors gets the same errno.
func (c *Checker) judge(call *usernotify.Call) (want expected, opened []int, err error) {
	a, err := readFile(call)
	if err != nil {
		return want, nil, err
	}
	find := func(dir int, path string, flags int) (program, error) { return c.find(call, dir, path, flags) }
	p, err := find(a.dir, a.path, a.flags)
	if err != nil {
		return want, nil, err
	}
	argv, err := readArguments(int(call.Thread), a.argv)
	if err != nil {
		return want, []int{p.fd}, err
	}
	image := Image{Path: a.path, Argv: argv, Thread: int(call.Thread)}
	image.Called = a.called(&p, a.folder(image.Thread), func(dir int, path string, flags int) (int, string, error) {
		return c.config.Find(call, dir, path, flags)
	})
	want, opened, err = image.follow(p, a.scriptName(), find)
	if err != nil {
		return want, opened, err
	}
	if want.process, want.parent, err = linux.ProcessOf(int(call.Thread)); err != nil {
		return want, opened, unix.EPERM
	}
	image.Process, image.Parent = want.process, want.parent
	if err := c.config.Decide(image); err != nil {
		return want, opened, err
	}
	// The decision may have taken as long as somebody needs to answer. An interpreter would read what a
	// script says now.
	if len(image.Interpreters) > 0 && image.identify(opened) != image.Identity {
		return want, opened, unix.ETXTBSY
	}
	return want, opened, nil
}

// follow finds the files that the kernel needs to run p, which the interpreter of a script gets under
// a name. The opened descriptors are the caller's, also after an error.
func (i *Image) follow(p program, name string, find func(dir int, path string, flags int) (program, error)) (want expected, opened []int, err error) {
	i.Program = p.path
	argv := i.Argv
	for {
		opened = append(opened, p.fd)
		line, loader, err := p.examine()
		if err != nil {
			return want, opened, err
		}
		i.Heads = append(i.Heads, bytes.Clone(line[:]))
		with, script := interpreter(line)
		if !script {
			want = expected{exe: p.id, cmdline: join(argv), name: name, argv: argv, passed: i.Argv}
			i.Final = argv
			if loader != "" {
				l, err := find(unix.AT_FDCWD, loader, 0)
				if err != nil {
					return want, opened, err
				}
				opened, want.loader, i.Loader = append(opened, l.fd), l.path, l.path
			}
			i.Identity = i.identify(opened)
			return want, opened, nil
		}
		if len(i.Interpreters) == maxInterpreters {
			return want, opened, unix.ELOOP
		}
		argv = slices.Concat(with, []string{name}, argv[1:])
		name = with[0]
		if p, err = find(unix.AT_FDCWD, name, 0); err != nil {
			return want, opened, err
		}
		i.Interpreters = append(i.Interpreters, p.path)
	}
}

// identify returns the identities of opened files. A file that cannot be examined is like no other.
func (i *Image) identify(opened []int) string {
	var all strings.Builder
	for n, fd := range opened {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil {
			return ""
		}
		id := identityOf(&st)
		if n > 0 {
			all.WriteByte(' ')
		}
		all.WriteString(id.String())
	}
	return all.String()
}

// Look describes the image that a call of execve would make in the folder dir of this process's own
// view of the files. Nothing runs.
func Look(path string, argv []string, dir string) (Image, error) {
	folder, text, err := openFolder(dir)
	if err != nil {
		return Image{}, err
	}
	defer unix.Close(folder)
	open := openAt(folder, 0)
	find := func(dir int, path string, flags int) (program, error) {
		fd, canonical, err := open(dir, path, flags)
		if err == nil {
			err = unix.Access(fmt.Sprintf("/proc/self/fd/%d", fd), unix.X_OK)
		}
		if err != nil {
			unix.Close(fd)
			return program{}, err
		}
		return identified(fd, canonical)
	}
	image, call := Image{Path: path, Argv: argv}, asked{dir: unix.AT_FDCWD, path: path}
	p, err := find(call.dir, path, 0)
	if err == nil {
		image.Called = call.called(&p, text, open)
		var opened []int
		_, opened, err = image.follow(p, path, find)
		for _, fd := range opened {
			unix.Close(fd)
		}
	}
	if err != nil {
		return Image{}, &os.PathError{Op: "exec", Path: path, Err: err}
	}
	return image, nil
}

// Called returns the absolute path at which this process finds a program that would be executed in the
// folder dir, by the name of the call: the path itself without .. or, behind a link, the one of its folder.
// It is "" if there is no such program, or if the path leads through what another process would find
// elsewhere, such as /proc/self/cwd.
func Called(path, dir string) string {
	folder, text, err := openFolder(dir)
	if err != nil {
		return ""
	}
	defer unix.Close(folder)
	open := openAt(folder, unix.RESOLVE_NO_MAGICLINKS)
	fd, canonical, err := open(unix.AT_FDCWD, path, 0)
	if err != nil {
		return ""
	}
	p, err := identified(fd, canonical)
	if err != nil {
		return ""
	}
	defer unix.Close(p.fd)
	return (&asked{dir: unix.AT_FDCWD, path: path}).called(&p, text, open)
}

// openFolder opens a folder, and returns its path without links.
func openFolder(dir string) (fd int, text string, err error) {
	if fd, err = unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return -1, "", &os.PathError{Op: "open", Path: dir, Err: err}
	}
	if text, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err != nil {
		unix.Close(fd)
		return -1, "", err
	}
	return fd, text, nil
}

// openAt returns a finder in the view of this process, for which relative paths begin in folder.
func openAt(folder int, resolve uint64) finder {
	return func(_ int, path string, _ int) (fd int, canonical string, err error) {
		if fd, err = unix.Openat2(folder, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: resolve}); err != nil {
			return -1, "", err
		}
		if canonical, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err != nil {
			unix.Close(fd)
			return -1, "", err
		}
		return fd, canonical, nil
	}
}

// find finds a program.
func (c *Checker) find(call *usernotify.Call, dir int, path string, flags int) (program, error) {
	fd, canonical, err := c.config.Find(call, dir, path, flags)
	if err != nil {
		return program{}, err
	}
	return identified(fd, canonical)
}

// identified returns the program that is open as fd, which it closes after an error.
func identified(fd int, canonical string) (program, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return program{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return program{}, unix.EACCES
	}
	return program{fd: fd, path: canonical, id: identityOf(&st)}, nil
}

// Ended waits until a child of this process has ended, and returns its pid. It does
// not reap the child, so the pid stays its own. The caller then waits for the child
// and calls [Checker.Reaped]. There may be only one such caller, and nothing else
// may wait for children. On nil it does the same in a process that traces nothing.
//
// It skips the stops and ends that belong to windows. A traced thread shows them to
// every waiter in this process. If it is a child, a waiter can even take them from
// its tracer, which would then wait for them in vain.
func (c *Checker) Ended() (pid int, err error) {
	for {
		s, err := look(unix.P_ALL, 0, 0)
		if err != nil {
			return 0, err
		}
		if c == nil {
			return s.pid, nil
		}
		if !c.settle(s.pid) && s.ended && isChild(s.pid) {
			return s.pid, nil
		}
	}
}

// settle returns once no window is open for the process or thread pid, and
// reports whether one was.
func (c *Checker) settle(pid int) bool {
	c.mu.Lock()
	closed := c.windows[pid]
	c.mu.Unlock()
	if closed == nil {
		return false
	}
	<-closed
	return true
}

// isChild reports whether pid, which was seen to have ended, is a child process of
// this one. Otherwise it was the end of a traced thread, which its tracer has waited
// for in the meantime. In doubt it returns true: for a moment there may be no
// descriptor for the look-up, and a procfs with hidepid also hides a child that died
// with capabilities.
func isChild(pid int) bool {
	leader, parent, err := linux.ProcessOf(pid)
	if err == unix.ENOENT || err == unix.ESRCH {
		s, err := look(unix.P_PID, pid, unix.WNOHANG)
		return err == nil && s.pid == pid && s.ended
	}
	return err != nil || leader == pid && parent == os.Getpid()
}

// Reaped notes that the child pid, which [Checker.Ended] returned, was waited
// for.
func (c *Checker) Reaped(pid int) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if reaped := c.reaped[pid]; reaped != nil {
		close(reaped)
		delete(c.reaped, pid)
	}
}
