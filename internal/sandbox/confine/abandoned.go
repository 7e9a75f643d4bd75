package confine

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// An init without a PID namespace ends the processes that its command leaves behind.
// If init itself is killed, these processes become children of the agent, together
// with the orphans of unconfined commands, which may live on. So all processes of a
// confined command have a mark that no process can remove: a hard limit of 0, which
// only root with its capabilities can raise. It is the limit of file locks
// (getrlimit(2), RLIMIT_LOCKS), which no kernel has used since 2.4. So it does not
// restrict the command, and no other program has a reason to set it.

// mark marks this process and every process that it will start.
func mark() error {
	err := unix.Setrlimit(unix.RLIMIT_LOCKS, &unix.Rlimit{})
	if err != nil {
		return fmt.Errorf("marking the processes of the command: %w", os.NewSyscallError("prlimit", err))
	}
	return nil
}

// Abandoned reports whether the process pid, a child of this process that it
// did not start, belongs to a command whose init is gone. It returns false for
// any process if this process has the mark too, like an agent inside a sandbox.
func Abandoned(pid int) bool {
	var own, its unix.Rlimit
	return unix.Getrlimit(unix.RLIMIT_LOCKS, &own) == nil && own.Max != 0 &&
		unix.Prlimit(pid, unix.RLIMIT_LOCKS, nil, &its) == nil && its.Max == 0
}
