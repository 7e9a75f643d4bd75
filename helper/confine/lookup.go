package confine

import (
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// defaultPath is searched when the environment has no PATH.
	defaultPath = "/usr/local/bin:/bin:/usr/bin"
	// maxElements is how many elements of PATH are searched.
	maxElements = 4096
)

// execute calls exec with the paths that a program of that name can have, in
// their order, until one is executed, as execvp(3) does without its fallback
// to a shell. The environment is that of the command, and so should the
// working directory be.
func execute(name string, env []string, exec func(path string) error) error {
	switch {
	case name == "":
		return syscall.ENOENT
	case strings.Contains(name, "/"):
		return exec(name)
	}
	path := defaultPath
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
			break // getenv(3) takes the first
		}
	}
	found, n := error(syscall.ENOENT), 0
	for element := range strings.SplitSeq(path, ":") {
		if n++; n > maxElements {
			break
		}
		if element == "" {
			element = "."
		}
		candidate := element + "/" + name
		err := executable(candidate)
		if err == nil {
			err = exec(candidate)
		}
		switch err {
		case nil:
			return nil
		case syscall.ENOENT, syscall.ENOTDIR:
		case syscall.EACCES:
			found = err
		default:
			return err
		}
	}
	return found
}

// executable tells what execve(2) would say to path, as far as its name and
// permissions go, which costs less than a fork.
func executable(path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return syscall.EACCES
	}
	return unix.Access(path, unix.X_OK)
}
