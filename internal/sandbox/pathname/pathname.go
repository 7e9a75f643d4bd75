// Package pathname compares the texts of absolute, clean paths; for other texts its
// results mean nothing. It does not look at the file system, and builds everywhere;
// its funcs may run at once.
package pathname

import "strings"

// Parent returns the directory above name; that of "/" is "/".
func Parent(name string) string {
	return name[:max(strings.LastIndexByte(name, '/'), 1)]
}

// Below reports whether name lies strictly below dir.
func Below(name, dir string) bool {
	if dir == "/" {
		return len(name) > 1
	}
	return len(name) > len(dir) && name[len(dir)] == '/' && name[:len(dir)] == dir
}

// Within reports whether name is dir or lies below it.
func Within(name, dir string) bool { return name == dir || Below(name, dir) }

// IsPseudo reports whether name is or lies in /proc, /sys or /dev, except for
// /dev/shm. A view has its own of these, or shows the host's so that nobody can
// write there: so no name there has to be kept from coming into being. /dev/shm is
// an exception because a policy can grant the host's.
func IsPseudo(name string) bool {
	return Within(name, "/proc") || Within(name, "/sys") || Within(name, "/dev") && !Within(name, "/dev/shm")
}
