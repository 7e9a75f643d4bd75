package rig

// Value returns v, and panics with err: for a step of a test that is not its subject and cannot
// fail unless something is broken.
func Value[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
