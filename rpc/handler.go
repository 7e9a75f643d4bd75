package rpc

import (
	"context"
	"encoding/json"

	"github.com/execagent/execagent/protocol"
)

// Handler serves one request. The result is written as JSON: by its own method if
// it is a [protocol.Appender], else by encoding/json. The method of a [Sent]
// result is called when the answer was written or never will be. An error goes
// through [Config.WireError]. The handler must not keep params or slices of them.
//
// The context ends with the connection.
type Handler func(ctx context.Context, params json.RawMessage) (any, error)

// Table maps names of methods to methods.
type Table map[string]Method

// Method is one entry of a [Table].
type Method struct {
	Handle Handler
	Order  Order
}

// Sent is implemented by a result that must know when its answer was written,
// to let notifications follow or to reuse its memory.
type Sent interface {
	// Sent is called by the goroutine that wrote the answer, after the write
	// succeeded or failed.
	Sent()
}

// sized is implemented by params and results that can be large, so that the
// buffer of the message need not grow.
type sized interface {
	// SizeHint returns the approximate size of the value's JSON in bytes. Above
	// 64 KiB a [protocol.Streamed] result is sent in parts.
	SizeHint() int
}

// Holder is implemented by params that keep slices of their message, or that can
// take as much memory as the message does. Such a message counts in the [Budget]
// until its request has been served. Any other message is released as soon as its
// params have been read.
type Holder interface {
	// HoldsMessage only marks the type; it is never called.
	HoldsMessage()
}

// Handle makes a [Handler] from a function with typed params and result.
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
