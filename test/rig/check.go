package rig

// Check ends a test if an error has kept it from coming to what it is about.
func Check(t interface {
	Helper()
	Fatal(args ...any)
}, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
