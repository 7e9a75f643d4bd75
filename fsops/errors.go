package fsops

import (
	"errors"
	"fmt"
	"io/fs"
)

// InvalidError is the error of a request that the protocol refuses, even if the
// system would allow it.
type InvalidError struct {
	// Text names the wrong argument and its value.
	Text string
}

func (e InvalidError) Error() string { return e.Text }

func invalidf(format string, args ...any) error {
	return InvalidError{Text: fmt.Sprintf(format, args...)}
}

func notRegular(path string) error {
	return invalidf("path %q is not a regular file", path)
}

// UnknownHandleError says that a request named a file handle that is not open.
type UnknownHandleError struct {
	// ID is the handle that the request named, at most 32 bytes.
	ID string
}

// Error names the handle.
func (e UnknownHandleError) Error() string {
	return fmt.Sprintf("file handle %q is not open", e.ID)
}

// pathError wraps an errno as the standard library does. An InvalidError and
// nil pass through as they are.
func pathError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[InvalidError](err); ok {
		return err
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}
