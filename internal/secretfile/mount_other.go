//go:build !linux

package secretfile

// mountOf knows no mounts.
func mountOf(string) mountKind { return ordinary }

// isMountPoint knows no mounts.
func isMountPoint(string) bool { return false }

// nobody: there are no user namespaces.
func nobody(uint32) bool { return false }
