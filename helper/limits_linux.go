package helper

import (
	"errors"
	"fmt"
	"os"

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

// list has those that are set, none above what is inherited.
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

// set lowers the soft limits of this process, for a child to be born with.
// The hard ones would hold for init too, whose runtime could not live with
// them. restore undoes it and makes them final for the child pid, if not 0.
func (l Limits) set() (restore func(pid int) error, err error) {
	type saved struct {
		limit
		was unix.Rlimit
	}
	var done []saved
	restore = func(pid int) (err error) {
		for _, s := range done {
			if pid != 0 {
				final := unix.Rlimit{Cur: s.value, Max: s.value}
				if e := unix.Prlimit(pid, s.resource, &final, nil); e != nil && e != unix.ESRCH {
					err = errors.Join(err, s.explain(e))
				}
			}
			if e := unix.Setrlimit(s.resource, &s.was); e != nil {
				err = errors.Join(err, s.explain(e))
			}
		}
		return err
	}
	for _, limit := range l.list() {
		s := saved{limit: limit}
		if err := unix.Getrlimit(limit.resource, &s.was); err != nil {
			return nil, limit.explain(err)
		}
		s.value = min(s.value, s.was.Max)
		if err := unix.Setrlimit(limit.resource, &unix.Rlimit{Cur: s.value, Max: s.was.Max}); err != nil {
			return nil, errors.Join(limit.explain(err), restore(0))
		}
		done = append(done, s)
	}
	return restore, nil
}
