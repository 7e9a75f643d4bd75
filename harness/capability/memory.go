package capability

import (
	"context"
	"errors"
	"fmt"

	"github.com/execagent/execagent/client"
)

const (
	// MaxKept is how many bytes a thread keeps of what it has found. What no longer fits is an
	// error.
	MaxKept = 64 << 20
	// maxFatal is how many times something is asked for that has ended the connection each time,
	// such as an answer that is larger than a message may be.
	maxFatal = 3
	// maxEntries is from how many entries on a thread forgets those that a step does not use.
	maxEntries = 1024
)

// memory is what was found, by what was looked for.
type memory[K comparable, V any] map[K]finding[V]

// finding is what came of looking.
type finding[V any] struct {
	value *V // nil: the environment does not tell, or nobody has looked
	err   error
	size  int // bytes
	fatal int // how often looking has ended in a fatalError
}

// has tells whether there is no need to look again.
func (m memory[K, V]) has(key K) bool {
	e, ok := m[key]
	return ok && (!mayPass(e.err) || e.fatal >= maxFatal)
}

// keep keeps what came of looking, or that there is no room for it. It tells whether something was
// found that could not be found before.
func keep[K comparable, V any](t *Thread, m memory[K, V], key K, e finding[V], failed func(error) *V) (recovered bool) {
	before, known := m[key]
	if mayPass(e.err) {
		e.fatal = before.fatal
		if _, ok := errors.AsType[*fatalError](e.err); ok {
			e.fatal++
		}
	}
	if known && before.err != nil && e.err != nil && before.err.Error() == e.err.Error() {
		e.value = before.value // the same as before, also for who compares pointers
	}
	if t.kept+e.size-before.size > t.room {
		err := fmt.Errorf("a thread keeps %d bytes of what is in its capability roots, and %d more do not fit", t.room, e.size)
		e = finding[V]{value: failed(err), err: err}
	}
	m[key] = e
	t.kept += e.size - before.size
	return known && before.err != nil && e.err == nil
}

// fatalError says that a request was made on a new connection, and that this was lost, too.
type fatalError struct{ error }

func (e *fatalError) Unwrap() error { return e.error }

// mayPass tells whether looking again may bring something else.
func mayPass(err error) bool {
	if err == nil {
		return false
	}
	return isLoss(err) || errors.Is(err, context.DeadlineExceeded) || client.Retryable(err)
}

// isLoss tells whether something that only reads has failed for want of a connection.
func isLoss(err error) bool {
	_, lost := errors.AsType[*client.DisconnectedError](err)
	return lost || errors.Is(err, client.ErrRecovering)
}
