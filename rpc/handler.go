package rpc

import (
	"context"
	"encoding/json"

	"github.com/execagent/execagent/protocol"
)

// Handler serves one request. The result is written as JSON: by its own method if
// it is a [protocol.Appender], else by encoding/json. A result that is [Sent] is
// told when the answer has been written or never will be. An error goes through
// [Config.WireError]. Neither params nor slices of them may be kept.
//
// The context ends with the connection.
type Handler func(ctx context.Context, params json.RawMessage) (any, error)

// Table maps the names of methods to how they are served.
type Table map[string]Method

// Method is one entry of a [Table].
type Method struct {
	Handle Handler
	Order  Order
}

// Sent is implemented by a result that must know when its answer has been
// written: to let notifications follow, or to reuse its memory.
type Sent interface {
	// Sent is called by the goroutine that wrote the answer, after the write or
	// after it has failed.
	Sent()
}

// Sized is implemented by params and results that can be large: the message
// is then written into a buffer that need not grow.
type Sized interface {
	// SizeHint is about how many bytes the value's JSON takes. Above 64 KiB a
	// [protocol.Streamed] result is sent in parts.
	SizeHint() int
}

// Holder is implemented by params that keep slices of their message, or that can
// take as much memory as the message does. Such a message counts in the [Budget]
// until its request has been served. Any other message is given back as soon as its
// params have been read.
type Holder interface {
	// HoldsMessage only marks the type; it is never called.
	HoldsMessage()
}

// Handle makes a [Handler] of a function with typed params and result.
func Handle[P, R any, PP interface {
	*P
	protocol.Unmarshaler
}](serve func(context.Context, P) (R, error)) Handler {
	_, holds := any(PP(nil)).(Holder)
	return func(ctx context.Context, raw json.RawMessage) (any, error) {
		var params P
		if err := protocol.UnmarshalParams(raw, PP(&params)); err != nil {
			return nil, err
		}
		if !holds {
			release(ctx)
		}
		return serve(ctx, params)
	}
}
