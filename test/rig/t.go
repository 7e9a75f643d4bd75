package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"
)

// Patience is how long a test waits for an event that must come, before the test fails. It is long,
// because the machine may be busy.
const Patience = 5 * time.Minute

// Context returns the context of one call that must succeed. It ends with the test, or when the
// call takes too long.
func Context(t T) context.Context {
	ctx, cancel := context.WithTimeoutCause(t.Context(), Patience, errLate)
	t.Cleanup(cancel)
	return ctx
}

var errLate = errors.New("it takes too long")

// T has the methods of a test that the rig needs.
type T interface {
	Helper()
	Context() context.Context
	TempDir() string
	Cleanup(func())
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Failed() bool
}

var _ T = testing.TB(nil)

// Outside runs f with a T in a program that is no test, or around all tests of a package, and
// returns the failures. Everything that f has started has ended then, and its folders are removed.
func Outside(ctx context.Context, f func(T)) (err error) {
	o := &outside{}
	ctx, cancel := context.WithCancel(ctx)
	o.ctx = ctx
	defer func() {
		if reason := recover(); reason != nil && reason != any(errFatal) {
			panic(reason)
		}
		cancel() // before the cleanups, as in a test
		for _, cleanup := range slices.Backward(o.cleanups) {
			cleanup()
		}
		err = errors.Join(o.failures...)
	}()
	f(o)
	return nil
}

// errFatal is the value with which Fatalf of an outside panics.
var errFatal = errors.New("failed")

// outside is the T of Outside. One goroutine uses it.
type outside struct {
	ctx      context.Context
	cleanups []func()
	failures []error
}

func (o *outside) Helper()                  {}
func (o *outside) Context() context.Context { return o.ctx }
func (o *outside) Cleanup(f func())         { o.cleanups = append(o.cleanups, f) }
func (o *outside) Failed() bool             { return len(o.failures) > 0 }

func (o *outside) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (o *outside) Errorf(format string, args ...any) {
	o.failures = append(o.failures, fmt.Errorf(format, args...))
}

func (o *outside) Fatalf(format string, args ...any) {
	o.Errorf(format, args...)
	panic(errFatal)
}

func (o *outside) TempDir() string {
	dir, err := os.MkdirTemp("", "rig")
	if err != nil {
		o.Fatalf("%w", err)
	}
	o.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
