package scenario

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/execagent/execagent/client"
)

// is reports whether an error is of a kind.
func is(kind string, err error) bool {
	server, isServer := errors.AsType[*client.ServerError](err)
	errno := 0
	if isServer {
		if cause := server.Err.Cause(); cause != nil {
			errno = cause.Errno
		}
	}
	switch kind {
	case "notFound":
		return errors.Is(err, fs.ErrNotExist)
	case "permissionDenied":
		return errors.Is(err, fs.ErrPermission)
	case "alreadyExists":
		return errors.Is(err, fs.ErrExist)
	case "notADirectory":
		return errno == int(syscall.ENOTDIR)
	case "isADirectory":
		return errno == int(syscall.EISDIR)
	case "refused":
		return isServer
	case "timeout":
		return errors.Is(err, context.DeadlineExceeded)
	case "disconnected":
		_, ok := errors.AsType[*client.DisconnectedError](err)
		return ok
	case "closed":
		return errors.Is(err, client.ErrClosed) || errors.Is(err, fs.ErrClosed)
	case "unsupported":
		_, ok := errors.AsType[*client.UnsupportedError](err)
		return ok
	case "stdin":
		_, ok := errors.AsType[*client.WriteError](err)
		return ok
	case "gap":
		_, ok := errors.AsType[*client.GapError](err)
		return ok
	case "usage":
		return !isServer && !is("disconnected", err) && !is("closed", err)
	}
	return false
}

// fails says how an error differs from the one that a step has to have. result is what was read before it.
func fails(want map[string]any, err error, result any) error {
	for name, w := range want {
		var got any
		server, isServer := errors.AsType[*client.ServerError](err)
		switch name {
		case "kind":
			if kind := fmt.Sprint(w); !is(kind, err) {
				return fmt.Errorf("%w is no %s", err, kind)
			}
			continue
		case "code":
			if isServer {
				got = int(server.Err.Code)
			}
		case "errno":
			if isServer && server.Err.Cause() != nil {
				got = server.Err.Cause().Errno
			}
		case "retryable":
			got = client.Retryable(err)
		case "message":
			got = err.Error()
		default:
			members, _ := result.(map[string]any)
			got = members[name]
		}
		if found := differs(w, got, name); found != "" {
			return fmt.Errorf("%w: %s", err, found)
		}
	}
	return nil
}
