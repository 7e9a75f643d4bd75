package client

import (
	"context"
	"errors"
	"io"
	"strconv"

	"github.com/execagent/execagent/client/internal/queue"
	"github.com/execagent/execagent/protocol"
)

// maxDelta is the largest piece of a streamed body, in bytes (client.md 3.3).
const maxDelta = 1 << 20

// HTTPResponse is the answer to an HTTP request that the server made.
type HTTPResponse struct {
	Status  int
	Headers []protocol.HTTPHeader
	// Body must be closed. Reading fails if the transfer fails, if the context of
	// the request ends, or if the connection is lost: a [DisconnectedError],
	// because no body goes on over another connection.
	Body io.ReadCloser
}

// HTTP makes the server send an HTTP request. The body of the answer is transferred
// while it is read; the context bounds the transfer too. RequestID and
// StreamResponse of params are ignored.
func (c *Client) HTTP(ctx context.Context, params protocol.HTTPRequestParams) (*HTTPResponse, error) {
	params.RequestID = "http-" + strconv.FormatUint(c.nextID(), 10)
	params.StreamResponse = true
	if params.Headers == nil {
		params.Headers = []protocol.HTTPHeader{}
	}
	for {
		l, err := c.connected(ctx)
		if err != nil {
			return nil, err
		}
		b := &body{connection: l, id: params.RequestID}
		r, err := b.request(ctx, &params)
		if !unsent(err) {
			return r, err
		}
	}
}

var errBodyClosed = errors.New("read of a closed HTTP body")

// body is a streamed body.
type body struct {
	connection *connection
	id         string
	stop       func() bool
	bytes      queue.Stream
	seq        uint64 // of the last piece; only the reader of the connection uses it
}

// request makes the request that the body answers.
func (b *body) request(ctx context.Context, params *protocol.HTTPRequestParams) (*HTTPResponse, error) {
	l := b.connection
	// The first pieces may come before call has returned the answer.
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		<-l.done
		return nil, l.lost
	}
	l.bodies[b.id] = b
	l.mu.Unlock()
	var r protocol.HTTPResponse
	if err := l.called(ctx, protocol.MethodHTTPRequest, params, &r); err != nil {
		b.fail(err)
		return nil, err
	}
	b.stop = context.AfterFunc(ctx, func() { b.fail(context.Cause(ctx)) })
	return &HTTPResponse{Status: r.Status, Headers: r.Headers, Body: b}, nil
}

// accept takes a piece from the reader of the connection.
func (b *body) accept(ctx context.Context, d *protocol.HTTPBodyDelta) {
	b.seq++
	switch {
	case d.Seq != b.seq:
		b.fail(protocolErrorf("http response stream `%s` received seq %d, expected %d", b.id, d.Seq, b.seq))
		return
	case len(d.DeltaBase64) > maxDelta:
		b.fail(protocolErrorf("http response stream `%s` received %d bytes at once", b.id, len(d.DeltaBase64)))
		return
	}
	if len(d.DeltaBase64) > 0 {
		b.bytes.Put(ctx, d.DeltaBase64, len(d.DeltaBase64))
	}
	switch {
	case d.Error != nil:
		b.fail(errors.New("http/request: " + *d.Error))
	case d.Done:
		b.fail(io.EOF)
	}
}

// fail ends the body after the data that has come.
func (b *body) fail(err error) {
	b.bytes.Fail(err)
	b.connection.mu.Lock()
	defer b.connection.mu.Unlock()
	delete(b.connection.bodies, b.id)
}

// Read has no context. It ends with the request's context, which makes the body fail.
func (b *body) Read(p []byte) (int, error) { return b.bytes.Read(p) }

// WriteTo lets io.Copy work without a buffer.
func (b *body) WriteTo(w io.Writer) (int64, error) { return b.bytes.WriteTo(w) }

// Close drops unread data.
func (b *body) Close() error {
	b.stop()
	b.bytes.Discard(func([]byte) bool { return true })
	b.fail(errBodyClosed)
	return nil
}
