package confine

import (
	"errors"
	"io/fs"
	"os/exec"
	"syscall"
)

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
