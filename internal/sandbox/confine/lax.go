package confine

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// While anything happens in a process, a monitor of Go's runtime wakes up every 20 µs, more rarely
// after some time, to look whether a thread has stayed in a system call. A supervisor waits in a
// system call for each call of its command, so its monitor woke up more often than there were
// calls, and took the time from the command. So the timers of a supervisor are lax: the kernel may
// end a sleep later, together with others. The monitor's work is then late too: a fifth thread
// waits up to some milliseconds while four stay in system calls ([threadsOfSupervisor]).
//
// A process inherits lax timers from the thread that forks it. There is no other way to reach the
// monitor, which exists before the program begins. The thread that forks or becomes the command
// makes its timers strict again.

// laxity is how much longer a sleep of a supervisor may be, in nanoseconds.
const laxity = 4_000_000

// laxVariable is the variable in a supervisor's environment that says how much longer a sleep of
// its command may be.
const laxVariable = "TIMERSLACK"

// beLax makes the timers of the calling thread lax, and those of processes that it forks from then
// on. It returns the variables that [beStrict] needs there; none if timers cannot be lax.
func beLax() (environ []string) {
	before, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil || before >= laxity || unix.Prctl(unix.PR_SET_TIMERSLACK, laxity, 0, 0, 0) != nil {
		return nil
	}
	return []string{laxVariable + "=" + strconv.Itoa(before)}
}

// beStrict gives the calling thread the timers of the variable, if there is one.
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
