package agent

import (
	"context"
	"errors"
	"io"

	"github.com/execagent/execagent/httpclient"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
)

// maxBodyDelta is how much of a streamed body goes into one notification, in
// bytes.
const maxBodyDelta = 256 << 10

// streamedResponse sends the body after the answer. Its handler still runs
// while it does, so the body dies with the connection.
type streamedResponse struct {
	protocol.HTTPResponse
	stream func()
}

func (r *streamedResponse) Sent() { r.stream() }

func (c *connection) httpRequest(ctx context.Context, p protocol.HTTPRequestParams) (any, error) {
	if err := rpc.Leave(ctx); err != nil {
		return nil, err
	}
	req := &httpclient.Request{
		Method:          p.Method,
		URL:             p.URL,
		Body:            p.BodyBase64,
		FollowRedirects: p.RedirectPolicy == protocol.RedirectFollow,
	}
	for _, h := range p.Headers {
		req.Headers = append(req.Headers, httpclient.Header(h))
	}
	if p.TimeoutMs != nil {
		req.Timeout = new(milliseconds(*p.TimeoutMs))
	}
	if p.StreamResponse {
		if !c.beginStream(p.RequestID) {
			return nil, protocol.InvalidParams("requestId: %.256s is already streaming a response", p.RequestID)
		}
	}
	resp, err := c.agent.http.Do(ctx, req)
	if err != nil {
		if p.StreamResponse {
			c.endStream(p.RequestID)
		}
		return nil, httpError(err)
	}
	answer := protocol.HTTPResponse{Status: resp.Status, Headers: []protocol.HTTPHeader{}}
	for _, h := range resp.Headers {
		answer.Headers = append(answer.Headers, protocol.HTTPHeader(h))
	}
	if p.StreamResponse {
		return &streamedResponse{answer, func() { c.streamBody(p.RequestID, resp.Body) }}, nil
	}
	defer resp.Body.Close()
	if answer.BodyBase64, err = io.ReadAll(resp.Body); err != nil {
		return nil, protocol.Errorf(protocol.CodeInternal, "http/request: reading the response body: %v", err)
	}
	return &answer, nil
}

func httpError(err error) error {
	if e, ok := errors.AsType[*httpclient.ParamError](err); ok {
		return protocol.InvalidParams("http/request: %v", e)
	}
	return protocol.Errorf(protocol.CodeInternal, "http/request: %v", err)
}

// beginStream claims a request id for a streamed body; false when it is in
// use.
func (c *connection) beginStream(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams[id] {
		return false
	}
	c.streams[id] = true
	return true
}

func (c *connection) endStream(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.streams, id)
}

// streamBody sends a body as notifications: as it comes in, at most
// maxBodyDelta at once. It ends when the connection does.
func (c *connection) streamBody(id string, body io.ReadCloser) {
	defer body.Close()
	delta := protocol.HTTPBodyDelta{RequestID: id}
	buf := rpc.Buffer(maxBodyDelta)[:maxBodyDelta]
	defer rpc.Recycle(buf)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			delta.Seq++
			delta.DeltaBase64 = buf[:n]
			if c.peer.Notify(protocol.MethodHTTPBodyDelta, &delta) != nil {
				c.endStream(id)
				return
			}
		}
		if err == nil {
			continue
		}
		if err != io.EOF {
			delta.Error = new("reading the response body: " + err.Error())
		}
		break
	}
	delta.Seq++
	delta.DeltaBase64, delta.Done = nil, true
	// The id is free once the last frame is on its way.
	c.endStream(id)
	_ = c.peer.Notify(protocol.MethodHTTPBodyDelta, &delta)
}

