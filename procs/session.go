package procs

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A job of a shell with job control leads a group of its own, but stays in the
// session. So the members of a session are looked for one by one.
//
// The number of a session is not given to a new process as long as anybody is
// in the session, also when its leader has long been reaped. Afterwards it may
// name the session of a stranger. Nothing in /proc tells the two apart but the
// time: a process that started before the number could change hands, and is in
// the session of that number now, has been in ours all the time, since a
// process enters a session only by being born into it. Such a process also
// shows that the number is still ours.

// sweepRounds bounds how often killSessions looks again for processes that were
// forked while it killed their parents.
const sweepRounds = 16

// killSessions kills the members of the sessions in until; the value is the
// tick up to which the number of the session is known to be ours. It leaves out
// the members of the group of that number, which the caller has killed. It
// reports whether the last look found nobody that could be killed.
func killSessions(until map[int]uint64) (done bool) {
	type process struct {
		pid   int
		start uint64
	}
	killed := map[process]bool{}
	for range sweepRounds {
		before, proved, doubted := len(killed), false, false
		for _, pid := range pids() {
			// This is a system call, and a file of /proc would cost fifty times
			// as much.
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
			// The stat is read after the pidfd was opened. So if the number has
			// another owner by now, the pidfd names a process that has ended.
			s, ok := statOf(pid)
			switch {
			case !ok || s.session != session:
			case s.start > known:
				doubted = true
			default:
				proved = true
				until[session] = max(known, at)
				p := process{pid, s.start}
				if !s.dead && s.group != session && !killed[p] && child.Kill() == nil {
					killed[p] = true
				}
			}
			_ = child.Release() // it fails if the process has ended
		}
		// A process in doubt may have been seen before an older one that shows
		// the session to be ours: then look again.
		if len(killed) == before && !(proved && doubted) {
			return true
		}
	}
	return false
}

// ticks is the time since boot in the unit of proc_pid_stat(5), never 0.
func ticks() uint64 {
	const tick = 10 * time.Millisecond // USER_HZ is 100
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 1 // without a clock nothing is known to be ours
	}
	return uint64(max(t.Nano()/int64(tick), 1))
}

// pids lists all processes.
func pids() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // what was read before an error still counts
	list := make([]int, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			list = append(list, pid)
		}
	}
	return list
}

// stat is what this package uses of proc_pid_stat(5).
type stat struct {
	dead           bool // a zombie
	group, session int
	start          uint64 // in ticks
}

// statOf reads the stat of a process. Field 2, its name, may have anything in
// it, so fields are counted from its closing parenthesis.
func statOf(pid int) (stat, bool) {
	line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, false // it has just gone
	}
	fields := bytes.Fields(line[bytes.LastIndexByte(line, ')')+1:])
	if len(fields) < 20 {
		return stat{}, false
	}
	group, err1 := strconv.Atoi(string(fields[2]))
	session, err2 := strconv.Atoi(string(fields[3]))
	start, err3 := strconv.ParseUint(string(fields[19]), 10, 64)
	state := fields[0][0]
	return stat{dead: state == 'Z' || state == 'X', group: group, session: session, start: start},
		err1 == nil && err2 == nil && err3 == nil
}

// sweep kills the members of the session that are in other groups. The caller
// has killed the group itself.
func (g *group) sweep() {
	if known, ok := g.claim(); ok && killSessions(map[int]uint64{g.pid: known}) {
		g.swept()
	}
}

// claim returns the tick up to which the number of the session is known to be
// ours. It returns false if nobody is left to be killed.
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

// swept notes that the group and the rest of the session were killed. Nobody
// joins either from outside, so nobody has to be looked for any more.
func (g *group) swept() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.killed = true
}

// numberUsedLocked tells whether the number of a reaped leader still names
// anything; a session with members is enough for that. Setting the owner of a
// file finds out just this: fcntl(2), F_SETOWN.
func (g *group) numberUsedLocked() bool {
	if g.pidfd == nil {
		return true // it cannot be told
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

// KillGroups is [Process.KillGroup] for many: it looks through the processes
// of the host once for all of them.
func KillGroups(processes ...*Process) {
	until := map[int]uint64{}
	var killed []*group
	leashes := make([]*leash, len(processes))
	for i, p := range processes {
		leashes[i] = p.leash
	}
	pull(leashes...)
	for _, p := range processes {
		_ = p.cgroup.kill()   // Close reports what does not end
		err := p.group.kill() // and what cannot be killed
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
