package probe

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/sandbox"
)

// tryOutside starts a child in new user and PID namespaces. The child tries to reach
// this process, which is outside of these namespaces. In the same way the agent and its
// other commands are outside of the namespaces of a command. Unlike the agent, this process
// does not hide its memory. The child writes the report if it can be started. tryOutside
// reports whether the child was started and has ended.
func (r *report) tryOutside() bool {
	self, err := os.Readlink("/proc/self")
	if !r.note(sandbox.PIDNS, "looking for this process in /proc", err) {
		return false
	}
	args := slices.Clone(os.Args)
	args[2], args[3] = whatInside, self
	pid, err := syscall.ForkExec("/proc/self/exe", args, &syscall.ProcAttr{
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWPID},
	})
	if !r.note(sandbox.PIDNS, stepCreate, err) {
		return false
	}
	_, err = syscall.Wait4(pid, nil, 0, nil)
	return r.note(sandbox.PIDNS, "waiting for a process in the namespace", err)
}

// tryInside makes sure that this process has its own PID namespace, and that it can
// neither signal nor read the process outside. In the procfs from outside that
// process has the number pid. A command without a fresh procfs relies on this
// (sandbox.md 14.3).
func (r *report) tryInside(pid int) {
	if own := os.Getpid(); own != 1 {
		r.note(sandbox.PIDNS, "entering the namespace", fmt.Errorf("this process has the number %d in the namespace, not 1", own))
		return
	}
	outside := filepath.Join("/proc", strconv.Itoa(pid))
	fd, err := unix.Open(outside, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT {
		r.note(sandbox.PIDNS, "", nil) // this procfs hides it (hidepid, proc(5))
		return
	}
	if !r.note(sandbox.PIDNS, "opening a process outside", err) {
		return
	}
	defer unix.Close(fd)
	// pidfd_send_signal(2) takes the directory of a process in place of a pidfd. The
	// kernel answers EINVAL. The other errnos are answers of a container engine's filter.
	err = refused(unix.PidfdSendSignal(fd, 0, nil, 0), unix.EINVAL, unix.EPERM, unix.ENOSYS)
	if !r.note(sandbox.PIDNS, "signalling a process outside", err) {
		return
	}
	for _, name := range []string{"environ", "mem", "maps", "fd/0", "cwd", "root"} {
		opened, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			// Some of these files of a dead process can be opened too. But the
			// process outside lives until this process has ended, or until the
			// whole probe takes too long.
			unix.Close(opened)
		}
		if !r.note(sandbox.PIDNS, "reading "+name+" of a process outside", refused(err, unix.EACCES, unix.EPERM)) {
			return
		}
	}
}
