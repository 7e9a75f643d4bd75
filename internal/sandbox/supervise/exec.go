package supervise

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/linux/usernotify"
	"github.com/execagent/execagent/internal/sandbox/judge"
	"github.com/execagent/execagent/internal/sandbox/refusals"
	"github.com/execagent/execagent/internal/sandbox/supervise/execcheck"
	"github.com/execagent/execagent/sandbox"
)

// Programs. A command may execute every program that it may read. The kernel
// executes, and package execcheck makes sure that it executes the judged
// program.

// exec passes the call to the checker.
func (r *request) exec() callResult {
	r.n.execs.Check(r.n.listener, r.call)
	return callResult{how: postponed}
}

// newChecker returns the checker of the command's programs.
func (n *Notifier) newChecker() *execcheck.Checker {
	return execcheck.New(execcheck.Config{Find: n.findProgram, Decide: n.decideProgram, First: n.config.Executed})
}

// findProgram finds the program that a call names, if the command may read it.
func (n *Notifier) findProgram(call *usernotify.Call, dir int, path string, flags int) (fd int, canonical string, err error) {
	if n.config.Level == sandbox.NoLevel && strings.HasPrefix(path, "/") && flags == 0 {
		if fd, canonical, ok := n.findQuickly(path); ok {
			return fd, canonical, nil
		}
	}
	r := &request{n: n, call: *call}
	n.names.RLock()
	defer n.names.RUnlock()
	var p place
	if path == "" && flags&unix.AT_EMPTY_PATH != 0 {
		p, err = r.object(dir)
	} else {
		how := fsops.FollowLast | fsops.Unheld
		if flags&unix.AT_SYMLINK_NOFOLLOW != 0 {
			how = fsops.Unheld
		}
		p, err = r.find(dir, path, how)
	}
	if err != nil {
		return -1, "", r.refuseFound(refusals.Execute, dir, path, errnoOf(err)).errno
	}
	defer p.close()
	switch {
	case !p.Exists():
		return -1, "", unix.ENOENT
	case p.Stat.Mode&unix.S_IFMT == unix.S_IFLNK:
		return -1, "", unix.ELOOP
	}
	if err := p.Access.Readable(); err != nil {
		n.note(refusals.Execute, p.Path)
		return -1, "", err
	}
	if n.config.Level == sandbox.NoLevel && !isNamed(&p.Place) {
		return -1, "", unix.EPERM
	}
	fd, err = unix.FcntlInt(uintptr(p.FD), unix.F_DUPFD_CLOEXEC, 0)
	return fd, p.Path, err
}

// isNamed reports whether this process finds a file by the file's path too. The directory of the
// caller may be in a mount namespace that the command made, in which it can give any file any path.
// A file without a path has another text instead.
func isNamed(p *fsops.Place) bool {
	if strings.HasSuffix(p.Path, " (deleted)") || !strings.HasPrefix(p.Path, "/") {
		return true
	}
	var st unix.Stat_t
	return unix.Lstat(p.Path, &st) == nil && st.Dev == p.Stat.Dev && st.Ino == p.Stat.Ino
}

// findQuickly finds a program from this process. The command finds the same one, unless the path
// leads through a descriptor or a directory of a process: for these links it returns false. If the
// kernel finds another program for the command, that one is judged when it is loaded.
func (n *Notifier) findQuickly(path string) (fd int, canonical string, ok bool) {
	fd, err := unix.Openat2(n.paths.Base().FD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return -1, "", false
	}
	canonical, err = os.Readlink(ownPath(fd))
	if err != nil || !strings.HasPrefix(canonical, "/") || strings.HasPrefix(canonical, "/proc/") || strings.HasSuffix(canonical, " (deleted)") {
		unix.Close(fd)
		return -1, "", false
	}
	return fd, canonical, true
}

// decideProgram decides about an image. The requested program was judged when it
// was found; a program that the kernel loaded instead is judged by its path.
func (n *Notifier) decideProgram(i execcheck.Image) error {
	if i.Real {
		if err := n.decideReal(&i); err != nil {
			return err
		}
	}
	if n.config.Judge == nil {
		return nil
	}
	// If the thread changes its directory now, only the description of the program changes, not the
	// program.
	dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", i.Thread))
	if err != nil {
		return unix.EPERM
	}
	p := judge.Of(&i, dir)
	return n.config.Judge.Decide(&p)
}

// decideReal decides about a program that the kernel loaded instead of the judged one.
func (n *Notifier) decideReal(i *execcheck.Image) error {
	if n.config.Level == sandbox.NoLevel {
		return nil // the kernel itself knows what the command may execute
	}
	path, foreign := n.shm.inside(i.Program)
	err := n.access(path).Readable()
	if foreign || !strings.HasPrefix(path, "/") || n.config.Policy.DeniesFile(path) {
		err = unix.EACCES
	}
	if err != nil {
		n.note(refusals.Execute, path)
	}
	return err
}

// Ended waits until a child of this process has ended, and returns its pid; see
// [execcheck.Checker.Ended]. It also works on nil.
func (n *Notifier) Ended() (pid int, err error) {
	if n == nil {
		return (*execcheck.Checker)(nil).Ended()
	}
	return n.execs.Ended()
}

// Reaped tells the notifier that the child pid, which Ended returned, was
// waited for.
func (n *Notifier) Reaped(pid int) {
	if n != nil {
		n.execs.Reaped(pid)
	}
}
