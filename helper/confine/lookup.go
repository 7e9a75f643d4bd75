package confine

import (
	"errors"
	"io/fs"
	"os/exec"
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

// execute looks for the program name as execvp(3) does, in the PATH of env, and
// calls exec with each path where the program may be, until one call succeeds.
// Unlike execvp it never runs a file by means of a shell. This process has to
// be in the working directory of the command, since elements of PATH may be
// relative.
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
			break // of several, getenv(3) takes the first too
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

// notExecuted is why a program was not executed, and the exit code of the init for that.
type notExecuted struct {
	code int
	err  error
}

func (e *notExecuted) Error() string { return e.err.Error() }
func (e *notExecuted) Unwrap() error { return e.err }

// ShellCode is the exit code of a shell that could not execute a program: 127 where it is not
// found, or what it needs to be loaded, else 126.
func ShellCode(err error) int {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, exec.ErrNotFound) {
		return 127
	}
	return 126
}

// executable returns the error with which execve(2) would refuse path for its
// name or its permissions. This costs less than a fork that fails.
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
