package agent

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"syscall"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/applypatch"
	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/internal/share"
	"github.com/execagent/execagent/protocol"
)

// WireError turns an error of a handler into the error that is sent. It is the
// only place that maps Go errors to codes (rpc.md 2.2).
func WireError(err error) *protocol.Error {
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		return e
	}
	return caused(protocol.Errorf(errorCode(err), "%s", errorText(err)), err)
}

// caused returns an error with what it was made of.
func caused(e *protocol.Error, err error) *protocol.Error {
	e.Err = err
	return e
}

// wireError is [WireError] for the client of a connection, which may want to know causes.
func (c *connection) wireError(err error) *protocol.Error {
	e := WireError(err)
	if errno, ok := errors.AsType[syscall.Errno](err); ok && c.errorData {
		return e.WithCause(int(errno), whatOf(err, e.Data != nil))
	}
	return e
}

// whatOf says what of a request the cause of an error is about, or "". started says that the error is one of a
// process, whose files are the program and the directory.
func whatOf(err error, started bool) string {
	for _, shortage := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM} {
		if errors.Is(err, shortage) {
			return ""
		}
	}
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		switch {
		case at.Op == "exec":
			return protocol.WhatProgram
		case at.Op == "chdir":
			return protocol.WhatCwd
		case !started:
			return protocol.WhatPath
		}
	}
	if at, ok := errors.AsType[*net.OpError](err); ok && at.Op == "dial" {
		return protocol.WhatAddress
	}
	return ""
}

func errorCode(err error) protocol.Code {
	if _, ok := errors.AsType[*protocol.ForeignPathError](err); ok {
		return protocol.CodeInvalidRequest
	}
	if _, ok := errors.AsType[fsops.InvalidError](err); ok {
		return protocol.CodeInvalidRequest
	}
	if _, ok := errors.AsType[*share.Error](err); ok {
		return protocol.CodeInvalidRequest
	}
	if _, ok := errors.AsType[*applypatch.SyntaxError](err); ok || errors.Is(err, applypatch.ErrEmpty) {
		return protocol.CodeInvalidParams
	}
	if _, ok := errors.AsType[*applypatch.MismatchError](err); ok {
		return protocol.CodeInvalidRequest
	}
	if _, ok := errors.AsType[fsops.UnknownHandleError](err); ok {
		return protocol.CodeNotFound
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		switch errno {
		case syscall.ENOENT:
			return protocol.CodeNotFound
		case syscall.EINVAL, syscall.EACCES, syscall.EPERM:
			return protocol.CodeInvalidRequest
		}
	}
	return protocol.CodeInternal
}

// errorText returns the text of an error for a client. An error of the system has
// its text and number, as in the reference, without the call and the path around
// them (rpc.md 2.2).
func errorText(err error) string {
	if _, ok := errors.AsType[*applypatch.FileError](err); ok {
		return err.Error() // a patch is about many files
	}
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		return e.Message
	}
	if own, ok := errors.AsType[interface {
		error
		BeforeCommand()
	}](err); ok {
		return own.Error() // the cause alone would look like an error of the command
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return linux.ErrnoText(errno)
	}
	if errors.Is(err, context.Canceled) {
		return "the connection has ended"
	}
	return err.Error()
}
