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

// tryOutside starts a child in new user and pid namespaces which tries to reach
// this process. That one is outside of them, as the agent and its other commands
// are outside of those of a command, and unlike the agent it does not hide its
// memory. The child writes the report if it can be started; the result tells.
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

// tryInside makes sure that this process has numbers of its own, and that it can
// neither signal nor read the process outside. In the procfs from outside that
// process has the number pid. This is what a command without a fresh procfs
// relies on (sandbox.md 14.3).
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
	// The directory of a process is as good as a pidfd here. The kernel answers
	// EINVAL; the others are answers of a container engine's filter.
	err = refused(unix.PidfdSendSignal(fd, 0, nil, 0), unix.EINVAL, unix.EPERM, unix.ENOSYS)
	if !r.note(sandbox.PIDNS, "signalling a process outside", err) {
		return
	}
	for _, name := range []string{"environ", "mem", "maps", "fd/0", "cwd", "root"} {
		opened, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			// Of a dead process some can be opened too. The one outside lives
			// until this one has ended, or until the whole probe takes too long.
			unix.Close(opened)
		}
		if !r.note(sandbox.PIDNS, "reading "+name+" of a process outside", refused(err, unix.EACCES, unix.EPERM)) {
			return
		}
	}
}
