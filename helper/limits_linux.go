package helper

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// limit is one of Limits.
type limit struct {
	resource int
	name     string
	value    uint64
}

// impose sets the limits of this process for good, none above what it has
// inherited. It is to execute the command next: the runtime cannot live within
// a limit of its address space, as it reserves more than it uses.
func (l Limits) impose() error {
	if l == (Limits{}) {
		return nil
	}
	// What executing takes comes out of this: the heap will not grow.
	const spare = 8 << 20
	runtime.KeepAlive(make([]byte, spare))
	runtime.GC()
	for _, limit := range []limit{
		{unix.RLIMIT_NPROC, "processes", l.Processes},
		{unix.RLIMIT_CPU, "processor time", l.CPUSeconds},
		{unix.RLIMIT_AS, "the address space", l.AddressSpace},
	} {
		if limit.value == 0 {
			continue
		}
		if err := limit.impose(); err != nil {
			return fmt.Errorf("limiting %s to %d: %w", limit.name, limit.value, os.NewSyscallError("prlimit", err))
		}
	}
	return nil
}

func (l limit) impose() error {
	var was unix.Rlimit
	if err := unix.Getrlimit(l.resource, &was); err != nil {
		return err
	}
	value := min(l.value, was.Max)
	return unix.Setrlimit(l.resource, &unix.Rlimit{Cur: value, Max: value})
}
