//go:build !linux

package secretfile

// mountOf tells of no mount.
func mountOf(string) mountKind { return ordinary }

// isMountPoint tells of no mount.
func isMountPoint(string) bool { return false }

// nobody: there are no user namespaces.
func nobody(uint32) bool { return false }
