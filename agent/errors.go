package agent

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/protocol"
)

// WireError turns an error of a handler into the one that is sent. No other
// place knows which Go error has which code (rpc.md 2.2).
func WireError(err error) *protocol.Error {
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		return e
	}
	return protocol.Errorf(errorCode(err), "%s", errorText(err))
}

func errorCode(err error) protocol.Code {
	if _, ok := errors.AsType[*protocol.ForeignPathError](err); ok {
		return protocol.CodeInvalidRequest
	}
	if _, ok := errors.AsType[fsops.InvalidError](err); ok {
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

// errorText returns what a client reads of an error. Of an error of the system the
// client reads its text and number, as from the reference, without the call and the
// path around them (rpc.md 2.2).
func errorText(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return osErrorText(errno)
	}
	if errors.Is(err, context.Canceled) {
		return "the connection has ended"
	}
	return err.Error()
}

func osErrorText(errno syscall.Errno) string {
	text, ok := osErrors[errno]
	if !ok {
		text = errno.Error()
	}
	return fmt.Sprintf("%s (os error %d)", text, int(errno))
}

// osErrors are the texts of strerror(3) in musl. The reference has them, so clients
// are used to them; some of the texts of glibc and of Go differ.
var osErrors = map[syscall.Errno]string{
	syscall.EPERM:        "Operation not permitted",
	syscall.ENOENT:       "No such file or directory",
	syscall.ESRCH:        "No such process",
	syscall.EINTR:        "Interrupted system call",
	syscall.EIO:          "I/O error",
	syscall.ENXIO:        "No such device or address",
	syscall.E2BIG:        "Argument list too long",
	syscall.ENOEXEC:      "Exec format error",
	syscall.EBADF:        "Bad file descriptor",
	syscall.ECHILD:       "No child process",
	syscall.EAGAIN:       "Resource temporarily unavailable",
	syscall.ENOMEM:       "Out of memory",
	syscall.EACCES:       "Permission denied",
	syscall.EFAULT:       "Bad address",
	syscall.ENOTBLK:      "Block device required",
	syscall.EBUSY:        "Resource busy",
	syscall.EEXIST:       "File exists",
	syscall.EXDEV:        "Cross-device link",
	syscall.ENODEV:       "No such device",
	syscall.ENOTDIR:      "Not a directory",
	syscall.EISDIR:       "Is a directory",
	syscall.EINVAL:       "Invalid argument",
	syscall.ENFILE:       "Too many open files in system",
	syscall.EMFILE:       "No file descriptors available",
	syscall.ENOTTY:       "Not a tty",
	syscall.ETXTBSY:      "Text file busy",
	syscall.EFBIG:        "File too large",
	syscall.ENOSPC:       "No space left on device",
	syscall.ESPIPE:       "Invalid seek",
	syscall.EROFS:        "Read-only file system",
	syscall.EMLINK:       "Too many links",
	syscall.EPIPE:        "Broken pipe",
	syscall.EDEADLK:      "Resource deadlock would occur",
	syscall.ENAMETOOLONG: "Filename too long",
	syscall.ENOLCK:       "No locks available",
	syscall.ENOSYS:       "Function not implemented",
	syscall.ENOTEMPTY:    "Directory not empty",
	syscall.ELOOP:        "Symbolic link loop",
	syscall.EOVERFLOW:    "Value too large for data type",
	syscall.EILSEQ:       "Illegal byte sequence",
	syscall.EOPNOTSUPP:   "Not supported",
	syscall.EADDRINUSE:   "Address in use",
	syscall.ETIMEDOUT:    "Operation timed out",
	syscall.ECONNREFUSED: "Connection refused",
	syscall.ECONNRESET:   "Connection reset by peer",
	syscall.EHOSTDOWN:    "Host is down",
	syscall.EHOSTUNREACH: "Host is unreachable",
	syscall.ESTALE:       "Stale file handle",
	syscall.EDQUOT:       "Quota exceeded",
	syscall.ECANCELED:    "Operation canceled",
}
