package protocol

import (
	"fmt"
	"strings"

	"github.com/execagent/execagent/internal/strictjson"
)

// Code is the code of an error answer.
type Code int

// The codes of the wire (rpc.md 2.2).
const (
	// CodeInvalidRequest: a malformed message (answered with id -1), a request
	// in the wrong state, a duplicate or unknown id, a limit, and the
	// InvalidInput and PermissionDenied classes of the file system.
	CodeInvalidRequest Code = -32600
	// CodeMethodNotFound: the method is not known.
	CodeMethodNotFound Code = -32601
	// CodeInvalidParams: the params do not decode, or a value is not allowed.
	CodeInvalidParams Code = -32602
	// CodeInternal: a process could not be started, any other OS error, a
	// failed HTTP transport.
	CodeInternal Code = -32603
	// CodeNotFound: no such file, or no such file handle. Clients rely on it:
	// they create the missing directory and try again.
	CodeNotFound Code = -32004
	// CodeSessionAttached: the session to resume still has a connection.
	CodeSessionAttached Code = -32010
)

// Error is the error member of an answer, and the one Go error that a handler
// returns to choose its code.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	// Data is more about the error, as a JSON object; nil for nothing.
	Data []byte `json:"-"`
	// Err is the error that this one was made of, where it was made. It is not sent.
	Err error `json:"-"`
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

func (e *Error) Error() string { return fmt.Sprintf("%s (code %d)", e.Message, e.Code) }

// maxError is how many bytes [Error.Bounded] leaves of an error.
const maxError = 64 << 10

// Bounded returns the error or, if it is longer than 64 KiB, an error with the beginning of its
// message and without its data, because its receiver may keep it for long.
func (e *Error) Bounded() *Error {
	if len(e.Message)+len(e.Data) <= maxError {
		return e
	}
	text := e.Message[:min(len(e.Message), maxError)]
	return &Error{Code: e.Code, Message: strings.Clone(strings.ToValidUTF8(text, ""))}
}

// ReasonExecPolicy is the reason of a start that a policy about commands does not allow
// (execpolicy.md 8.2).
const ReasonExecPolicy = "execPolicy"

// ReasonForgotten is the reason of a repeated start whose process has ended and is no longer kept
// (rpc.md 8.12).
const ReasonForgotten = "forgotten"

// Reason returns the member reason of the data, or "".
func (e *Error) Reason() string {
	if e.Data == nil {
		return ""
	}
	o, err := strictjson.ParseObject(e.Data)
	if err != nil {
		return ""
	}
	if reason := o.OptString("reason"); reason != nil {
		return *reason
	}
	return ""
}

// Errorf returns an [Error] with a formatted text.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// InvalidRequest returns an [Error] with [CodeInvalidRequest].
func InvalidRequest(format string, args ...any) *Error {
	return Errorf(CodeInvalidRequest, format, args...)
}

// InvalidParams returns an [Error] with [CodeInvalidParams].
func InvalidParams(format string, args ...any) *Error {
	return Errorf(CodeInvalidParams, format, args...)
}
