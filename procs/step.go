package procs

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/execagent/execagent/internal/linux"
)

// stepError is a failure of this program before it executes the command. A caller must not take its
// cause, such as ENOENT, for an error of the command.
type stepError struct {
	step string
	err  error
}

// atStep returns an error that begins with the step that has failed.
func atStep(step string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, syscall.ENOENT) {
		if _, missing := os.Lstat("/proc/self"); missing != nil {
			err = fmt.Errorf("%w: %w", err, linux.ErrNoProcfs)
		}
	}
	return &stepError{step, err}
}

func (e *stepError) Error() string { return e.step + ": " + e.err.Error() }
func (e *stepError) Unwrap() error { return e.err }

// BeforeCommand tells package agent to send the text of the error, and not that of its cause.
func (e *stepError) BeforeCommand() {}
