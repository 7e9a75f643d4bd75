// Package pathname compares the texts of absolute, clean paths. It does not
// look at the file system, and builds everywhere; its funcs may run at once.
package pathname

import "strings"

// Parent is the directory of name; "/" is its own.
func Parent(name string) string {
	return name[:max(strings.LastIndexByte(name, '/'), 1)]
}

// Below tells whether name lies strictly below dir.
func Below(name, dir string) bool {
	if dir == "/" {
		return len(name) > 1
	}
	return len(name) > len(dir) && name[len(dir)] == '/' && name[:len(dir)] == dir
}

// Within tells whether name is dir or lies below it.
func Within(name, dir string) bool { return name == dir || Below(name, dir) }

// IsPseudo tells whether name is in /proc, /sys or /dev: every view has its own,
// or one that nobody can write to, so that nothing has to be kept from coming
// into being there. What is granted of /dev/shm is the host's.
func IsPseudo(name string) bool {
	return Within(name, "/proc") || Within(name, "/sys") || Within(name, "/dev") && !Within(name, "/dev/shm")
}
