package rig

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/google/go-cmp/cmp"
)

// failer is what the functions of this file need of a test: less than a [T], so that a
// *rapid.T is one too.
type failer interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Must ends a test of which a step failed that is not its subject.
func Must(t failer, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatalf("%v", err)
		}
	}
}

// Check is as Must, but the test goes on. Goroutines of a test may call it too.
func Check(t failer, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Errorf("%v", err)
		}
	}
}

// Is fails a test if got is not want. Of errors, [errors.Is] reports whether they are. The format
// says what was looked at.
func Is[V comparable](t failer, got, want V, format string, args ...any) {
	t.Helper()
	is := false
	if err, ok := any(&got).(*error); ok {
		is = errors.Is(*err, *any(&want).(*error))
	} else {
		is = got == want
	}
	if is {
		return
	}
	what := fmt.Sprintf(format, args...)
	if what != "" {
		what += ": "
	}
	verb := "%v"
	if reflect.TypeFor[V]().Kind() == reflect.String {
		verb = "%q"
	}
	t.Errorf("%s"+verb+", want "+verb, what, got, want)
}

// Same fails a test in which what it has got is not what it wants, and tells the difference.
func Same(t failer, what string, want, got any, options ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// Err returns the error of a call whose result does not matter.
func Err[R any](_ R, err error) error { return err }

// Value returns v, and panics with err: for a step of a test that is not its subject and cannot
// fail unless something is broken.
func Value[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
