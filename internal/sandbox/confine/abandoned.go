package confine

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// An init without a PID namespace ends what its command leaves behind. If it is
// killed itself, what is left goes to the agent, together with the orphans of
// commands that nothing confines and that may live on. So all processes of such a
// command have a mark that no process can get rid of: a hard limit of 0, which only
// root with its capabilities can raise. It is the limit of file locks (getrlimit(2),
// RLIMIT_LOCKS), which no kernel has looked at since 2.4: it takes nothing from the
// command, and nobody else has a reason to set it.

// mark marks this process and all that it will start.
func mark() error {
	err := unix.Setrlimit(unix.RLIMIT_LOCKS, &unix.Rlimit{})
	if err != nil {
		return fmt.Errorf("marking the processes of the command: %w", os.NewSyscallError("prlimit", err))
	}
	return nil
}

// Abandoned tells whether the process pid, a child of this one that it has not
// started, belongs to a command whose init is gone. The answer is no for any
// process if this one has the mark too, as an agent inside a sandbox has.
func Abandoned(pid int) bool {
	var own, its unix.Rlimit
	return unix.Getrlimit(unix.RLIMIT_LOCKS, &own) == nil && own.Max != 0 &&
		unix.Prlimit(pid, unix.RLIMIT_LOCKS, nil, &its) == nil && its.Max == 0
}
