package procs

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
)

// A job of a shell with job control leads a group of its own, but stays in the
// session. So the members of a session must be found one by one.
//
// The kernel does not give the number of a session to a new process as long as the
// session has a member, even if its leader was reaped long ago. Once the session is
// empty, the number may name the session of a stranger. Only the time in /proc
// distinguishes the two. Suppose that a process is now in the session with that
// number, and started when the number was certainly ours. It has always been in our
// session, because a process enters a session only by being born into it or by
// making it. So it may be killed, and it proves that the number is still ours,
// because the session was never empty.

// sweepRounds bounds how often killSessions looks again for processes that were
// forked while it killed their parents.
const sweepRounds = 16

// killSessions kills the members of the sessions in until, which has, for the
// number of each session, the tick up to which the number is known to be ours. It
// moves the tick where it finds proof. It leaves out the group with the same
// number, which the caller has killed. It reports whether the last look found no
// more processes to kill.
func killSessions(until map[int]uint64) (done bool) {
	type process struct {
		pid   int
		start uint64
	}
	killed := map[process]bool{}
	for range sweepRounds {
		before, proved, doubted := len(killed), false, false
		pids, _ := linux.PIDs() // what cannot be listed cannot be killed
		for _, pid := range pids {
			// This system call excludes most processes. Reading a file of /proc
			// for each would cost fifty times as much.
			session, err := unix.Getsid(pid)
			if err != nil {
				continue
			}
			known, ours := until[session]
			if !ours {
				continue
			}
			at := ticks()
			child, err := os.FindProcess(pid)
			if err != nil {
				continue
			}
			// The stat is read after FindProcess has opened a pidfd. So if the
			// stat shows a member of the session, the pidfd is of the same
			// process, or of a process that has ended.
			stat, err := linux.StatOf(pid)
			start := uint64(stat.Number(linux.StatStart))
			switch {
			case err != nil || stat.Number(linux.StatSession) != session:
			case start > known:
				doubted = true
			default:
				proved = true
				until[session] = max(known, at)
				p := process{pid, start}
				if !stat.Dead() && stat.Number(linux.StatGroup) != session && !killed[p] && child.Kill() == nil {
					killed[p] = true
				}
			}
			_ = child.Release() // it fails if the process has ended
		}
		// A process may have been in doubt only because an older one, which
		// proves the session to be ours, was seen after it: then look again.
		if len(killed) == before && !(proved && doubted) {
			return true
		}
	}
	return false
}

// ticks returns the time since boot in the unit of proc_pid_stat(5), never 0.
func ticks() uint64 {
	const tick = 10 * time.Millisecond // USER_HZ is 100
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 1 // without a clock, no process counts as ours
	}
	return uint64(max(t.Nano()/int64(tick), 1))
}

// sweep kills the members of the session that are in other groups. The caller
// has killed the group itself.
func (g *group) sweep() {
	if known, ok := g.claim(); ok && killSessions(map[int]uint64{g.pid: known}) {
		g.swept()
	}
}

// claim returns the tick up to which the number of the session is known to be
// ours. It returns false if no process is left to kill.
func (g *group) claim() (known uint64, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.gone || g.killed:
		return 0, false
	case !g.reaped:
		return ticks(), true
	}
	return g.known, true
}

// swept notes that the group and the rest of the session were killed. No
// process can join either from outside, so no further look is needed.
func (g *group) swept() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.killed = true
}

// numberUsedLocked reports whether the number of a reaped leader still names a
// process, a group or a session. It sets the owner of the pidfd to that number,
// which fails if the number names nothing (fcntl(2), F_SETOWN).
func (g *group) numberUsedLocked() bool {
	if g.pidfd == nil {
		return true // no pidfd to ask with: assume the worse
	}
	raw, err := g.pidfd.SyscallConn()
	if err != nil {
		return true
	}
	used := true
	_ = raw.Control(func(fd uintptr) { // it fails if the file is closed
		_, err := unix.FcntlInt(fd, unix.F_SETOWN, g.pid)
		used = err != syscall.ESRCH
	})
	return used
}

// KillGroups is [Process.KillGroup] for many processes at once: it looks
// through the processes of the host only once for all of them.
func KillGroups(processes ...*Process) {
	until := map[int]uint64{}
	var killed []*group
	leashes := make([]*leash, len(processes))
	for i, p := range processes {
		leashes[i] = p.leash
	}
	pull(leashes...)
	for _, p := range processes {
		// Errors are left to Process.Close, which kills again.
		_ = p.cgroup.kill()
		err := p.group.kill()
		known, ok := p.group.claim()
		if !ok {
			continue
		}
		until[p.group.pid] = max(until[p.group.pid], known)
		if err == nil {
			killed = append(killed, p.group)
		}
	}
	if len(until) > 0 && killSessions(until) {
		for _, g := range killed {
			g.swept()
		}
	}
}
