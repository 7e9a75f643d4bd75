package supervise

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
)

// A command may change the limits and the scheduling of its own processes. Those
// of other processes of the same user it must not touch; neither Landlock nor a
// lack of capabilities keeps it from that. All that decides is in numbers, which
// the command cannot change once it has made the call, so the kernel goes on with
// a call that is allowed. Should the process end in between, and one outside get its
// number, that one's are changed: nothing is lost by it but some speed, so nobody does
// these calls here as is done with signals.

// limit judges a call whose first argument is a process or a thread: prlimit(2)
// and those of sched(7). A caller that names itself by its number is one of them.
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

// ofItsOwn lets the kernel go on with a call about the process or thread id, if
// that is one of the command's.
func (r *request) ofItsOwn(id int) callResult {
	if !isOfCommand(id) {
		return fail(r.there(unix.EPERM))
	}
	return proceed()
}

// maxDepth bounds how many processes lie between one of the command and its
// supervisor.
const maxDepth = 1 << 16

// isOfCommand tells whether id is a process of the command, or a thread of one:
// whether the supervisor is its ancestor. An orphan is too, since the supervisor
// adopts it. The supervisor itself is none of them.
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
			// A thread of the supervisor has its process's parent.
			leader, err := linux.ThreadStatus(id, "Tgid", 10)
			return err == nil && leader != self
		}
		id = parent
	}
	return false
}
