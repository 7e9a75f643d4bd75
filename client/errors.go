package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/execagent/execagent/protocol"
)

// Reasons why a call fails in the client, before it is sent. errors.Is finds
// them.
var (
	// ErrClosed: [Client.Close] was called.
	ErrClosed = errors.New("client closed")
	// ErrRecovering: the connection is lost, and the context of the call is one of
	// [FailFast].
	ErrRecovering = errors.New("exec-server environment is recovering")
	// ErrReplaced: [Client.Retire] was called.
	ErrReplaced = errors.New("exec-server executor was replaced")
	// ErrTaken: another client has taken the session, see [Config.Take].
	ErrTaken = errors.New("exec-server session was taken by another client")
	// ErrReplacing: the client is still resuming on an earlier connection of [Client.Replace].
	ErrReplacing = errors.New("exec-server connection is being replaced already")
	// ErrTooManyCalls: 1,024 calls wait for their answers.
	ErrTooManyCalls = fmt.Errorf("exec-server has reached its limit of %d pending requests", maxCalls)
)

// Retryable reports whether the call that returned err may be made again: it was not
// carried out, and another attempt may succeed. It is false for a [DisconnectedError]
// of a request that was sent, because the request may have been carried out. After
// the client has failed (see [Client.Done]), another attempt needs a new client.
func Retryable(err error) bool {
	lost, ok := errors.AsType[*DisconnectedError](err)
	connect, failed := errors.AsType[*ConnectError](err)
	// A client that had sent a request may have given up because of a ConnectError.
	if failed && !(ok && lost.Sent && errors.Is(lost, connect)) {
		return !connect.Final
	}
	if ok {
		return !lost.Sent && !errors.Is(lost.Err, ErrClosed) && !errors.Is(lost.Err, ErrTaken)
	}
	if refused, ok := errors.AsType[*ServerError](err); ok {
		return refused.Err.Code == protocol.CodeSessionAttached
	}
	if _, ok := errors.AsType[*InitializeTimeoutError](err); ok {
		return true
	}
	return errors.Is(err, ErrRecovering) || errors.Is(err, ErrTooManyCalls)
}

// ConnectError says that there is no connection: [Config.Dial] failed, or the new
// connection ended during the handshake. It wraps the error of Dial. After a timeout
// it wraps [context.DeadlineExceeded].
type ConnectError struct {
	Err error
	// Final: another attempt would not help ([Config.Final]).
	Final bool
}

func (e *ConnectError) Error() string { return "connecting to exec-server: " + e.Err.Error() }

func (e *ConnectError) Unwrap() error { return e.Err }

// InitializeTimeoutError says that a connection was opened, but the server did
// not finish the handshake.
type InitializeTimeoutError struct{ After time.Duration }

func (e *InitializeTimeoutError) Error() string {
	return fmt.Sprintf("timed out waiting for exec-server initialize handshake after %v", e.After)
}

// TimeoutError says that the server did not answer a call that has its own time
// limit. It is a [context.DeadlineExceeded].
type TimeoutError struct {
	Method string
	After  time.Duration
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("timed out waiting for exec-server `%s` response after %v", e.Method, e.After)
}

// Is makes errors.Is(err, context.DeadlineExceeded) work.
func (e *TimeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// DisconnectedError says that the connection is gone.
type DisconnectedError struct {
	// Err is the reason; nil: the server closed the connection in good order.
	Err error
	// Resume is the reason why the client did not resume its session; nil if it
	// still may, or could not try.
	Resume error
	// Sent: the request was sent. It may or may not have been carried out.
	Sent bool
}

func (e *DisconnectedError) Error() string {
	text := "exec-server transport disconnected"
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	if e.Resume != nil {
		text += "; failed to resume exec-server session: " + e.Resume.Error()
	}
	return text
}

// Unwrap returns the causes, if any.
func (e *DisconnectedError) Unwrap() []error {
	var causes []error
	for _, err := range []error{e.Err, e.Resume} {
		if err != nil {
			causes = append(causes, err)
		}
	}
	return causes
}

// sent returns the same error for a request that was sent.
func (e *DisconnectedError) sent() *DisconnectedError {
	return &DisconnectedError{Err: e.Err, Resume: e.Resume, Sent: true}
}

// recoveryTimeoutError is the reason of a client that gave up because it did not resume its session
// in time.
type recoveryTimeoutError struct {
	after time.Duration
	last  error // of the last attempt; nil if there was none
}

func (e *recoveryTimeoutError) Error() string {
	text := fmt.Sprintf("recovery timed out after %v", e.after)
	if e.last != nil {
		text += ": " + e.last.Error()
	}
	return text
}

func (e *recoveryTimeoutError) Unwrap() error { return e.last }

// RecoverError says that the client lost its connection and recovered, but missed
// events of one process. That process was terminated; the client goes on.
type RecoverError struct {
	ProcessID string
	Err       error // often a [GapError]
}

func (e *RecoverError) Error() string {
	return fmt.Sprintf("failed to recover process %.256s: %v", e.ProcessID, e.Err)
}

func (e *RecoverError) Unwrap() error { return e.Err }

// GapError says that the server no longer has some events of a process: those after
// the event After, up to Through or to an event before it.
type GapError struct{ After, Through uint64 }

func (e *GapError) Error() string {
	return fmt.Sprintf("exec-server protocol error: process events are no longer retained while recovering through sequence %d, the last one here is %d",
		e.Through, e.After)
}

// ServerError is an answer that refuses a request, cut to 64 KiB. It wraps the *protocol.Error, and
// is [fs.ErrNotExist] if its code says so. It is that, [fs.ErrExist] or [fs.ErrPermission] also if its
// cause is an error of the server's system that these stand for; [protocol.Error.Cause] has the cause.
type ServerError struct{ Err *protocol.Error }

func (e *ServerError) Error() string {
	return fmt.Sprintf("exec-server rejected request (%d): %s", e.Err.Code, e.Err.Message)
}

// Unwrap returns the error as it came.
func (e *ServerError) Unwrap() error { return e.Err }

// Is makes errors.Is work for errors of package fs.
func (e *ServerError) Is(target error) bool {
	if target == fs.ErrNotExist && e.Err.Code == protocol.CodeNotFound {
		return true
	}
	cause := e.Err.Cause()
	if cause == nil {
		return false
	}
	switch cause.Name {
	case "ENOENT":
		return target == fs.ErrNotExist
	case "EEXIST", "ENOTEMPTY":
		return target == fs.ErrExist
	case "EACCES", "EPERM":
		return target == fs.ErrPermission
	}
	return false
}

// ProtocolError says that the server broke the rules of the protocol.
type ProtocolError struct{ Reason string }

func (e *ProtocolError) Error() string { return "exec-server protocol error: " + e.Reason }

func protocolErrorf(format string, args ...any) error {
	return &ProtocolError{Reason: fmt.Sprintf(format, args...)}
}

// UnsupportedError says that the server does not advertise a feature, so the
// request was not sent, because older servers silently ignore unknown members.
// A server advertises nothing that its operator or its host always refuses.
type UnsupportedError struct{ Feature string }

func (e *UnsupportedError) Error() string {
	return "exec-server does not support " + e.Feature + ", or its operator does not allow it"
}

// WriteError says that the server did not accept a write to a process's standard
// input.
type WriteError struct{ Status protocol.WriteStatus }

func (e *WriteError) Error() string {
	return "writing to the process's stdin: status " + string(e.Status)
}
