package confine

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// While anything happens in a process, a monitor of Go's runtime wakes up every 20 µs, more
// rarely after some time, to look whether a thread has stayed in a system call. A supervisor
// waits in one for each call of its command, so its monitor woke up oftener than there were
// calls, and took the time from the command. The timers of a supervisor are lax therefore: the
// kernel may end a sleep later, together with others. What the monitor does is then late too: a
// fifth thread waits up to some milliseconds where four stay in system calls
// ([threadsOfSupervisor]).
//
// A process gets this from the thread that forks it, and there is no other way to reach the
// monitor, which is there before the program begins. What forks or becomes the command takes
// it back.

// laxity is by how much a sleep of a supervisor may be longer, in nanoseconds.
const laxity = 4_000_000

// laxVariable is the variable in the environment of a supervisor that says by how much a sleep of
// its command may be longer.
const laxVariable = "TIMERSLACK"

// beLax makes the timers of the calling thread lax, and those of what it forks from then on. It
// returns what [beStrict] needs in the environment there; nothing where timers cannot be lax.
func beLax() (environ []string) {
	before, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil || before >= laxity || unix.Prctl(unix.PR_SET_TIMERSLACK, laxity, 0, 0, 0) != nil {
		return nil
	}
	return []string{laxVariable + "=" + strconv.Itoa(before)}
}

// beStrict gives the calling thread the timers that the variable tells of, if there is one.
func beStrict() error {
	text, lax := os.LookupEnv(laxVariable)
	if !lax {
		return nil
	}
	before, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return fmt.Errorf("reading how lax the command's timers are: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(before), 0, 0, 0); err != nil {
		return fmt.Errorf("making the command's timers strict: %w", os.NewSyscallError("prctl", err))
	}
	return nil
}
