package scenario

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
)

// cause is what the agent's system said about an error; the zero value: nothing is known.
func cause(err error) protocol.Cause {
	if server, ok := errors.AsType[*client.ServerError](err); ok && server.Err.Cause() != nil {
		return *server.Err.Cause()
	}
	return protocol.Cause{}
}

// is reports whether an error is of a kind.
func is(kind string, err error) bool {
	_, isServer := errors.AsType[*client.ServerError](err)
	switch kind {
	case "notFound":
		return errors.Is(err, fs.ErrNotExist)
	case "permissionDenied":
		return errors.Is(err, fs.ErrPermission)
	case "alreadyExists":
		return errors.Is(err, fs.ErrExist)
	case "notADirectory":
		return cause(err).Errno == int(syscall.ENOTDIR)
	case "isADirectory":
		return cause(err).Errno == int(syscall.EISDIR)
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
		others := []string{"refused", "timeout", "disconnected", "closed", "unsupported", "stdin", "gap"}
		return !slices.ContainsFunc(others, func(other string) bool { return is(other, err) })
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
			got = cause(err).Errno
		case "what":
			got = cause(err).What
		case "retryable":
			got = client.Retryable(err)
		case "message":
			got = err.Error()
		case "stdout", "stderr", "exitCode":
			members, _ := result.(map[string]any)
			got = members[name]
		default:
			return fmt.Errorf("%w: member %s of fails", ErrUnknown, name)
		}
		if found := differs(w, got, name); found != "" {
			return fmt.Errorf("%w: %s", err, found)
		}
	}
	return nil
}
