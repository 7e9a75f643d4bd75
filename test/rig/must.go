package rig

import "errors"

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

// Is fails a test that has got another error than it wants, in a step that the format names.
func Is(t failer, err, want error, format string, args ...any) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf(format+": %v, want %v", append(args, err, want)...)
	}
}

// Err returns the error of a call whose result does not matter.
func Err[R any](_ R, err error) error { return err }
