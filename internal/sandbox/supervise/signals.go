package supervise

import (
	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/supervise/signals"
)

// signal does a call that sends a signal.
func (r *request) signal() callResult {
	call := signals.Call{
		Number: int(r.call.Number), Args: r.call.Args, Thread: r.thread(),
		Own:    isOfCommand,
		Still:  func() error { return r.there(nil) },
		Memory: r.memory,
		Open:   func(name string) (int, error) { return r.ofCaller(name, unix.O_RDONLY) },
	}
	switch err := call.Send(); err {
	case nil:
		return callResult{}
	case signals.ErrToKernel:
		if err := r.there(nil); err != nil {
			return fail(err)
		}
		return proceed()
	default:
		return fail(r.there(err))
	}
}
