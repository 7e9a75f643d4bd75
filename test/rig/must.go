package rig

// Must ends a test of which a step failed that is not its subject.
func Must(t interface {
	Helper()
	Fatalf(format string, args ...any)
}, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatalf("%v", err)
		}
	}
}
