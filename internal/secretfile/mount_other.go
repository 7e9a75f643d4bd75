//go:build !linux

package secretfile

// readOnly tells of no mount.
func readOnly(string) bool { return false }

// outside: there are no user namespaces.
func outside(uint32) bool { return false }
