package confine

import (
	"errors"
	"io/fs"
	"os/exec"
	"syscall"
)

// notExecuted is the reason why a program was not executed, with the exit code of the init for it.
type notExecuted struct {
	code int
	err  error
}

func (e *notExecuted) Error() string { return e.err.Error() }
func (e *notExecuted) Unwrap() error { return e.err }

// ShellCode returns the exit code of a shell that could not execute a program: 127 if the program
// or its loader is not found, else 126.
func ShellCode(err error) int {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, exec.ErrNotFound) {
		return 127
	}
	return 126
}
