package supervise

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
)

// A command may change the limits and the scheduling of its own processes. It must not
// touch other processes of the same user, which neither Landlock nor a lack of
// capabilities prevents. The decision depends only on numbers, which the command
// cannot change once it has made the call, so the kernel continues an allowed call. If
// the process ends in between, and an outside process gets its number, the limits of
// the outside process are changed. That costs only some speed, so the supervisor does
// not do these calls itself, as it does with signals.

// limit judges a call whose first argument is a process or a thread: prlimit(2)
// and those of sched(7). A caller may also name itself by its number.
func (r *request) limit() callResult { return r.ofItsOwn(r.int(0)) }

// setpriority judges setpriority(2): the priority of one process, and not that of
// a group or of all processes of a user.
func (r *request) setpriority() callResult {
	const ofProcess = 0 // PRIO_PROCESS
	if r.int(0) != ofProcess {
		return fail(unix.EPERM)
	}
	return r.ofItsOwn(r.int(1))
}

// ioprioSet judges ioprio_set(2), as setpriority does.
func (r *request) ioprioSet() callResult {
	const ofProcess = 1 // IOPRIO_WHO_PROCESS
	if r.int(0) != ofProcess {
		return fail(unix.EPERM)
	}
	return r.ofItsOwn(r.int(1))
}

// ofItsOwn lets the kernel continue a call about the process or thread id, if
// id belongs to the command.
func (r *request) ofItsOwn(id int) callResult {
	if !isOfCommand(id) {
		return fail(r.there(unix.EPERM))
	}
	return proceed()
}

// maxDepth bounds how many processes lie between a process of the command and
// its supervisor.
const maxDepth = 1 << 16

// isOfCommand reports whether id is a process of the command, or a thread of
// one: whether the supervisor is its ancestor. Orphans count, because the
// supervisor adopts them. The supervisor itself does not.
func isOfCommand(id int) bool {
	self := os.Getpid()
	for range maxDepth {
		if id <= 1 {
			return false
		}
		parent, err := linux.ThreadStatus(id, "PPid", 10)
		if err != nil {
			return false
		}
		if parent == self {
			// A thread of the supervisor has the parent of its process.
			leader, err := linux.ThreadStatus(id, "Tgid", 10)
			return err == nil && leader != self
		}
		id = parent
	}
	return false
}
