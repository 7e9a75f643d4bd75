package linux

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Rlimit is a limit of this process and of the children that it starts later (setrlimit(2)).
type Rlimit struct {
	Resource int
	Name     string // of the resource, for errors
	Value    uint64 // 0: no limit
}

// Impose sets the soft and the hard limit, but not above the inherited hard one.
func (l Rlimit) Impose() error {
	if l.Value == 0 {
		return nil
	}
	var was unix.Rlimit
	err := unix.Getrlimit(l.Resource, &was)
	if err == nil {
		value := min(l.Value, was.Max)
		err = unix.Setrlimit(l.Resource, &unix.Rlimit{Cur: value, Max: value})
	}
	if err != nil {
		return fmt.Errorf("limiting %s to %d: %w", l.Name, l.Value, os.NewSyscallError("prlimit", err))
	}
	return nil
}
