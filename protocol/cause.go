package protocol

import (
	"strconv"
	"strings"
	"sync"

	"github.com/execagent/execagent/internal/strictjson"
)

// Cause is what the system of the server said about an error.
type Cause struct {
	// Errno is the number that Linux has for the error, 1 to 4095. Other systems have other numbers.
	Errno int
	// Name is the name of the number, such as ENOENT; "" for a number without a name.
	Name string
	// What was wrong: one of the words below, "" if that is not known. Servers may add words.
	What string
}

// What a cause is about.
const (
	WhatProgram = "program" // of a process
	WhatCwd     = "cwd"     // of a process
	WhatPath    = "path"    // the path of a request, or one of them
	WhatAddress = "address" // of a connection
)

// maxErrno is the highest number of an error that Linux has.
const maxErrno = 4095

// Cause returns the cause of the error, or nil. A server with errorData tells it to a client that asks. That of other
// servers is found in the text, without What.
func (e *Error) Cause() *Cause {
	if o, err := strictjson.ParseObject(e.Data); e.Data != nil && err == nil && o.Has("errno") {
		n := o.Uint64("errno")
		if o.Err() != nil || n == 0 || n > maxErrno {
			return nil
		}
		c := &Cause{Errno: int(n), Name: errnoName(int(n))}
		if name := o.OptString("name"); name != nil && c.Name == "" {
			c.Name = *name
		}
		if what := o.OptString("what"); what != nil {
			c.What = *what
		}
		return c
	}
	const mark = "(os error "
	_, number, ok := strings.Cut(e.Message, mark)
	if !ok {
		return nil
	}
	number, _, _ = strings.Cut(number, ")")
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || n == 0 || n > maxErrno {
		return nil
	}
	return &Cause{Errno: int(n), Name: errnoName(int(n))}
}

// WithCause returns the error with data about an error number of Linux. The data that it has, if any, stays.
func (e *Error) WithCause(errno int, what string) *Error {
	if errno <= 0 || errno > maxErrno {
		return e
	}
	data := []byte{'{'}
	if n := len(e.Data) - 1; n > 1 {
		data = append(append(data[:0], e.Data[:n]...), ',')
	}
	data = strconv.AppendInt(append(data, `"errno":`...), int64(errno), 10)
	if name := errnoName(errno); name != "" {
		data = appendText(data, `,"name":`, name)
	}
	if what != "" {
		data = appendText(data, `,"what":`, what)
	}
	return &Error{Code: e.Code, Message: e.Message, Data: append(data, '}'), Err: e.Err}
}

// errnoName returns the name of an error number of Linux, or "".
func errnoName(n int) string {
	if names := errnoNames(); n > 0 && n <= len(names) && names[n-1] != "-" {
		return names[n-1]
	}
	return ""
}

// errnoNames are the names of the numbers from 1 on; errno(3). The numbers are those of amd64 and arm64.
var errnoNames = sync.OnceValue(func() []string {
	return strings.Fields(`EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT ENOTBLK
		EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK EPIPE
		EDOM ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP - ENOMSG EIDRM ECHRNG EL2NSYNC EL3HLT EL3RST ELNRNG
		EUNATCH ENOCSI EL2HLT EBADE EBADR EXFULL ENOANO EBADRQC EBADSLT - EBFONT ENOSTR ENODATA ETIME ENOSR ENONET ENOPKG
		EREMOTE ENOLINK EADV ESRMNT ECOMM EPROTO EMULTIHOP EDOTDOT EBADMSG EOVERFLOW ENOTUNIQ EBADFD EREMCHG ELIBACC ELIBBAD
		ELIBSCN ELIBMAX ELIBEXEC EILSEQ ERESTART ESTRPIPE EUSERS ENOTSOCK EDESTADDRREQ EMSGSIZE EPROTOTYPE ENOPROTOOPT
		EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH
		ENETRESET ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN ESHUTDOWN ETOOMANYREFS ETIMEDOUT ECONNREFUSED EHOSTDOWN
		EHOSTUNREACH EALREADY EINPROGRESS ESTALE EUCLEAN ENOTNAM ENAVAIL EISNAM EREMOTEIO EDQUOT ENOMEDIUM EMEDIUMTYPE
		ECANCELED ENOKEY EKEYEXPIRED EKEYREVOKED EKEYREJECTED EOWNERDEAD ENOTRECOVERABLE ERFKILL EHWPOISON`)
})
