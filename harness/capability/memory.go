package capability

import (
	"context"
	"errors"
	"fmt"

	"github.com/execagent/execagent/client"
)

const (
	// MaxKept is how many bytes of found files a thread keeps. Files that no longer fit are an
	// error.
	MaxKept = 64 << 20
	// maxFatal is how many times a request is repeated that ended the connection each time, for
	// example because its answer is larger than a message may be.
	maxFatal = 3
	// maxEntries is the number of entries from which on a thread forgets entries that a step does
	// not use.
	maxEntries = 1024
)

// memory holds the findings, by their keys.
type memory[K comparable, V any] map[K]finding[V]

// finding is the result of looking for something.
type finding[V any] struct {
	value *V // nil: the environment does not say, or no call has looked yet
	err   error
	size  int // bytes
	fatal int // how often looking ended in a fatalError
}

// has reports whether there is no need to look again.
func (m memory[K, V]) has(key K) bool {
	e, ok := m[key]
	return ok && (!mayPass(e.err) || e.fatal >= maxFatal)
}

// keep keeps a finding, or the error that there is no room for it. It reports whether something was
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
		e.value = before.value // the same pointer as before, because callers compare pointers
	}
	if t.kept+e.size-before.size > t.room {
		err := fmt.Errorf("a thread keeps %d bytes of what is in its capability roots, and %d more do not fit", t.room, e.size)
		e = finding[V]{value: failed(err), err: err}
	}
	m[key] = e
	t.kept += e.size - before.size
	return known && before.err != nil && e.err == nil
}

// fatalError says that a request was repeated on a new connection, which was lost too.
type fatalError struct{ error }

func (e *fatalError) Unwrap() error { return e.error }

// mayPass reports whether looking again may have another result.
func mayPass(err error) bool {
	if err == nil {
		return false
	}
	return isLoss(err) || errors.Is(err, context.DeadlineExceeded) || client.Retryable(err)
}

// isLoss reports whether a request that only reads failed because there was no connection.
func isLoss(err error) bool {
	_, lost := errors.AsType[*client.DisconnectedError](err)
	return lost || errors.Is(err, client.ErrRecovering)
}
