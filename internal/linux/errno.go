package linux

import (
	"errors"
	"fmt"
	"syscall"
)

// ErrNoProcfs says why there is no /proc/self/exe.
var ErrNoProcfs = errors.New("no procfs is mounted at /proc")

// ErrnoText returns the text of an error number, with the number.
func ErrnoText(errno syscall.Errno) string {
	text, ok := texts[errno]
	if !ok {
		text = errno.Error()
	}
	return fmt.Sprintf("%s (os error %d)", text, int(errno))
}

// texts are the texts of strerror(3) in musl. Some texts of glibc and of Go differ.
var texts = map[syscall.Errno]string{
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
