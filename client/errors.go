package client

import (
	"fmt"
	"io/fs"
	"time"

	"github.com/execagent/execagent/protocol"
)

// ConnectError says that the connection could not be opened; it wraps the
// error of [Config.Dial]. One that took too long wraps
// [context.DeadlineExceeded].
type ConnectError struct{ Err error }

func (e *ConnectError) Error() string { return "connecting to exec-server: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *ConnectError) Unwrap() error { return e.Err }

// InitializeTimeoutError says that a connection was opened, but the server did
// not finish the handshake.
type InitializeTimeoutError struct{ After time.Duration }

func (e *InitializeTimeoutError) Error() string {
	return fmt.Sprintf("timed out waiting for exec-server initialize handshake after %v", e.After)
}

// DisconnectedError says that the connection is gone. Whether a request that
// was under way has been carried out is not known.
type DisconnectedError struct{ Err error } // nil: the server ended it in good order

func (e *DisconnectedError) Error() string {
	if e.Err == nil {
		return "exec-server transport disconnected"
	}
	return "exec-server transport disconnected: " + e.Err.Error()
}

// Unwrap returns the cause, if any.
func (e *DisconnectedError) Unwrap() error { return e.Err }

// ServerError is an answer that refuses a request. It wraps the
// *protocol.Error, and is [fs.ErrNotExist] when its code says so.
type ServerError struct{ Err *protocol.Error }

func (e *ServerError) Error() string {
	return fmt.Sprintf("exec-server rejected request (%d): %s", e.Err.Code, e.Err.Message)
}

// Unwrap returns the error as it came.
func (e *ServerError) Unwrap() error { return e.Err }

// Is makes errors.Is(err, fs.ErrNotExist) work.
func (e *ServerError) Is(target error) bool {
	return target == fs.ErrNotExist && e.Err.Code == protocol.CodeNotFound
}

// ProtocolError says that the server broke the rules of the protocol.
type ProtocolError struct{ Reason string }

func (e *ProtocolError) Error() string { return "exec-server protocol error: " + e.Reason }

func protocolErrorf(format string, args ...any) error {
	return &ProtocolError{Reason: fmt.Sprintf(format, args...)}
}

// UnsupportedError says that the server does not advertise a feature, so the
// request was not sent: older servers silently ignore what they do not know.
type UnsupportedError struct{ Feature string }

func (e *UnsupportedError) Error() string { return "exec-server does not support " + e.Feature }

// WriteError says that the server did not accept a write to a process's standard
// input.
type WriteError struct{ Status protocol.WriteStatus }

func (e *WriteError) Error() string {
	return "writing to the process's stdin: status " + string(e.Status)
}
