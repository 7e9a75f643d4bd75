package helper

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// limit is one of Limits.
type limit struct {
	resource int
	name     string
	value    uint64
}

func (l limit) explain(err error) error {
	return fmt.Errorf("limiting %s to %d: %w", l.name, l.value, os.NewSyscallError("prlimit", err))
}

// list has those that are set.
func (l Limits) list() []limit {
	var set []limit
	for _, limit := range []limit{
		{unix.RLIMIT_NPROC, "processes", l.Processes},
		{unix.RLIMIT_AS, "the address space", l.AddressSpace},
		{unix.RLIMIT_CPU, "processor time", l.CPUSeconds},
	} {
		if limit.value > 0 {
			set = append(set, limit)
		}
	}
	return set
}

// lower sets the soft limits of this process, for a child to be born with, and
// returns what undoes that. The hard ones would hold for init too, whose
// runtime could not live with them: they come with finish.
func (l Limits) lower() (restore func() error, err error) {
	type saved struct {
		limit
		was unix.Rlimit
	}
	var done []saved
	restore = func() (err error) {
		for _, s := range done {
			if e := unix.Setrlimit(s.resource, &s.was); e != nil {
				err = errors.Join(err, s.explain(e))
			}
		}
		return err
	}
	for _, limit := range l.list() {
		s := saved{limit: limit}
		if err := unix.Getrlimit(limit.resource, &s.was); err != nil {
			return nil, errors.Join(limit.explain(err), restore())
		}
		if err := unix.Setrlimit(limit.resource, &unix.Rlimit{Cur: min(limit.value, s.was.Max), Max: s.was.Max}); err != nil {
			return nil, errors.Join(limit.explain(err), restore())
		}
		done = append(done, s)
	}
	return restore, nil
}

// finish sets the hard limits of the command. It may have raised its soft ones
// meanwhile, and passed that on, so in a PID namespace all that there is
// stands still for a moment and gets the same. Elsewhere that could hit others,
// and only the command itself is bound.
func (l Limits) finish(command int, pidNS bool) error {
	limits := l.list()
	if len(limits) == 0 {
		return nil
	}
	pids := []int{command}
	if pidNS {
		defer unix.Kill(-1, unix.SIGCONT) // kill(2) spares init
		var err error
		if pids, err = stopAll(command); err != nil {
			return fmt.Errorf("limiting what runs: %w", err)
		}
	}
	for _, pid := range pids {
		for _, l := range limits {
			if err := l.bind(pid); err != nil && err != unix.ESRCH {
				return l.explain(err)
			}
		}
	}
	return nil
}

// stopAll stops every other process of the PID namespace and returns all of
// them. A fork that is under way goes on, and its child has the limits from
// before, so it looks again until nobody moves. To wait for that would be for
// ever where one waits for its vfork(2) child, which is stopped.
func stopAll(command int) ([]int, error) {
	const looks = 10_000 // nearly always the first is enough, after waiting
	if err := unix.Kill(-1, unix.SIGSTOP); err != nil && err != unix.ESRCH {
		return nil, os.NewSyscallError("kill", err)
	}
	for unix.Waitid(unix.P_PID, command, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	for range looks {
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return nil, err
		}
		var pids []int
		still := true
		for _, entry := range entries {
			if pid, err := strconv.Atoi(entry.Name()); err == nil && pid != os.Getpid() {
				pids = append(pids, pid)
				still = still && stopped(pid)
			}
		}
		if still {
			return pids, nil
		}
	}
	return nil, errors.New("it does not stand still")
}

// stopped tells whether a process can fork nobody: it is stopped, dead, or
// waits for one that it has forked; proc_pid_stat(5).
func stopped(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return true // it has ended
	}
	_, fields, _ := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
	return len(fields) > 0 && bytes.IndexByte([]byte("TtZXD"), fields[0]) >= 0
}

// bind makes the limit final for a process. What was inherited may be lower.
func (l limit) bind(pid int) error {
	var was unix.Rlimit
	if err := unix.Prlimit(pid, l.resource, nil, &was); err != nil {
		return err
	}
	value := min(l.value, was.Max)
	return unix.Prlimit(pid, l.resource, &unix.Rlimit{Cur: value, Max: value}, nil)
}
