package procs

import (
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
)

// group is the process group of a child that made itself the leader of a
// session: pid, group and session have one number.
//
// The number is ours as long as the child is not reaped, or the group or session
// has a member. After that it may name a stranger. So once the child is reaped,
// signals to the group go through its pidfd, which never names a stranger.
type group struct {
	pid    int
	reaper *Reaper

	mu     sync.Mutex
	pidfd  *os.File // nil: the kernel has none, or it was given up
	reaped bool
	known  uint64 // set when reaped: the tick up to which the number was certainly ours
	empty  bool   // the group has no member, and none can join it again
	gone   bool   // the group is empty, and so is the rest of the session
	killed bool   // all in the group and session were killed
}

// signal sends sig to the group if the leader has not exited, and reports
// whether it had not.
func (g *group) signal(sig syscall.Signal) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reaped || exited(g.pid) {
		return false
	}
	// Kill fails only for a group of another user, and callers could do nothing
	// about that.
	_ = syscall.Kill(-g.pid, sig)
	return true
}

// signalRest sends sig to what is left of the group after the leader has exited.
func (g *group) signalRest(sig syscall.Signal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.empty || !g.reaped {
		return
	}
	// Kill fails only for a group of another user, and callers could do nothing about that.
	if err := g.signalPidfdLocked(sig); err == errNoGroupSignal && groupLeft(g.pid) {
		_ = syscall.Kill(-g.pid, sig)
	}
}

// kill sends SIGKILL to all in the group. It fails if the group has members and
// none of them may be killed.
func (g *group) kill() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := error(syscall.ESRCH)
	switch {
	case g.empty:
	case !g.reaped:
		err = syscall.Kill(-g.pid, syscall.SIGKILL)
	default:
		at := ticks()
		err = g.signalPidfdLocked(syscall.SIGKILL)
		if err == nil {
			g.known = at
		}
		if err != errNoGroupSignal {
			break
		}
		err = syscall.ESRCH
		if groupLeft(g.pid) {
			err = syscall.Kill(-g.pid, syscall.SIGKILL)
		}
	}
	if err == syscall.ESRCH {
		return nil
	}
	return os.NewSyscallError("kill", err)
}

// release gives up the pidfd of a reaped group if the group has no members
// left, or all were killed. It reports whether the same is true of the whole
// session.
//
// A zombie is a member until it is reaped. An init or subreaper above reaps an
// orphaned grandchild, at a time that we cannot know.
func (g *group) release() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.empty:
		return g.gone
	case g.killed:
		g.closePidfdLocked()
		g.empty, g.gone = true, true
		return true
	}
	err := g.signalPidfdLocked(0)
	old := err == errNoGroupSignal
	if old {
		err = syscall.Kill(-g.pid, 0)
	}
	if err == syscall.ESRCH {
		g.empty = true
		g.gone = !g.numberUsedLocked()
	}
	if g.empty || old { // remaining members of the session are found in /proc, without a pidfd
		g.closePidfdLocked()
	}
	return g.gone
}

// held reports whether the group still has its pidfd.
func (g *group) held() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.pidfd != nil
}

// left reports whether the group or its session may have members.
func (g *group) left() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.gone
}

// abandon gives up the pidfd. The caller has killed all members.
func (g *group) abandon() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closePidfdLocked()
	g.empty, g.gone = true, true
}

func (g *group) closePidfdLocked() {
	if g.pidfd != nil {
		_ = g.pidfd.Close() // nothing is written to it
		g.pidfd = nil
	}
}

// errNoGroupSignal is the error of pidfd_send_signal(2) for
// PIDFD_SIGNAL_PROCESS_GROUP before Linux 6.9.
const errNoGroupSignal = syscall.EINVAL

// signalPidfdLocked sends sig to the group by its pidfd.
func (g *group) signalPidfdLocked(sig syscall.Signal) error {
	if g.pidfd == nil {
		return errNoGroupSignal
	}
	raw, err := g.pidfd.SyscallConn()
	if err != nil {
		return errNoGroupSignal
	}
	var serr error
	if err := raw.Control(func(fd uintptr) {
		serr = unix.PidfdSendSignal(int(fd), sig, nil, unix.PIDFD_SIGNAL_PROCESS_GROUP)
	}); err != nil {
		return errNoGroupSignal
	}
	if serr == syscall.ENOSYS {
		return errNoGroupSignal
	}
	return serr
}

// groupLeft reports whether a group whose leader was reaped still has members.
// As long as it has, its number is not given to a new process. So if a process
// has that number, the group is gone.
func groupLeft(pgid int) bool {
	left := leftGroups()
	return left.groups[pgid] && !left.pids[pgid]
}

// left is the content of /proc: all processes, and the groups in a session with
// their own number, as all our groups are.
type left struct{ pids, groups map[int]bool }

func leftGroups() left {
	l := left{pids: map[int]bool{}, groups: map[int]bool{}}
	pids, _ := linux.PIDs() // a group that is not found counts as gone
	for _, pid := range pids {
		l.pids[pid] = true
		pgrp, err1 := unix.Getpgid(pid)
		session, err2 := unix.Getsid(pid)
		if err1 == nil && err2 == nil && pgrp == session {
			l.groups[pgrp] = true
		}
	}
	return l
}
