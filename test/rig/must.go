package rig

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"syscall"

	"github.com/google/go-cmp/cmp"
)

// failer has the methods of a test that this file needs. These are fewer than those of a [T], so
// that a *rapid.T is a failer too.
type failer interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Must ends a test if an error is not nil. It is for steps that are not the subject of the test.
func Must(t failer, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatalf("%v", err)
		}
	}
}

// Close closes something for good. Without it, a child that another test starts at that moment may
// still have it until the child executes its program: a port stays bound, a file stays locked. The
// kernel lets the parent of a vfork(2) go on before it closes the descriptors of the child, so
// [syscall.ForkLock] alone is not enough.
func Close(t T, closers ...io.Closer) {
	t.Helper()
	syscall.ForkLock.RLock()
	var open []file
	for _, c := range closers {
		if id, ok := fileOf(c); ok {
			open = append(open, id)
		}
		Check(t, c.Close())
	}
	syscall.ForkLock.RUnlock()
	Until(t, "no child has what was closed", func() bool { return !childrenHave(open) })
}

// Check does what Must does, but the test continues. Goroutines of a test may call it too.
func Check(t failer, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Errorf("%v", err)
		}
	}
}

// Is fails a test if got is not the wanted value. For an error, [errors.Is] decides. The format names
// the value.
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

// Says fails a test unless err has a text that contains the wanted text. If the wanted text is empty,
// there must be no error. The format names the step.
func Says(t failer, err error, want, format string, args ...any) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%s: error %.300v, want %q in it", fmt.Sprintf(format, args...), err, want)
	}
}

// Same fails a test if got differs from want, and prints the difference.
func Same(t failer, what string, want, got any, options ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// Err returns the error of a call whose result does not matter.
func Err[R any](_ R, err error) error { return err }

// Value returns v, and panics with err if err is not nil. It is for steps that are not the subject
// of a test, and that cannot fail unless something is broken.
func Value[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
